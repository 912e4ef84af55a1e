//! Splits the text of an answer into the model's reasoning and its content, as the text arrives.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Where the answer of a rendered prompt begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// Inside the reasoning: the prompt has opened it.
    Inside,
    /// Before it: the answer may open it.
    Before,
}

impl ReasoningStart {
    /// Reads it off the end of a rendered prompt.
    #[must_use]
    pub fn of_prompt(prompt: &str) -> Self {
        if prompt.trim_end().ends_with(OPEN) {
            Self::Inside
        } else {
            Self::Before
        }
    }

    /// Where an answer goes on that has begun with `said`.
    #[must_use]
    pub fn of_beginning(said: &str) -> Self {
        match (said.rfind(OPEN), said.rfind(CLOSE)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Self::Inside,
            _ => Self::Before,
        }
    }
}

/// What one push gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitText {
    /// Text between the tags, without the line breaks next to them.
    pub reasoning: String,
    /// Text after them, without leading line breaks.
    pub content: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only white space or a part of the opening tag so far.
    Before,
    /// Behind the opening tag; only line breaks so far.
    Opened,
    Inside,
    /// Behind the closing tag; only white space so far.
    Closed,
    Content,
}

/// Takes an answer's text in chunks. The result does not depend on the chunking; only what may still be part of a
/// tag, or white space next to one, is held back.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    state: State,
    held: String,
}

impl ReasoningSplitter {
    /// A splitter for an answer that begins at `start`.
    #[must_use]
    pub fn new(start: ReasoningStart) -> Self {
        let state = match start {
            ReasoningStart::Inside => State::Opened,
            ReasoningStart::Before => State::Before,
        };
        Self {
            state,
            held: String::new(),
        }
    }

    /// Whether the text is inside the reasoning now.
    #[must_use]
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Opened | State::Inside)
    }

    /// Takes `chunk` and gives what is certain by now.
    pub fn push(&mut self, chunk: &str) -> SplitText {
        self.held.push_str(chunk);
        let mut out = SplitText::default();
        while self.step(&mut out) {}
        out
    }

    /// Ends the answer: what was held back and turned out to be no tag.
    pub fn finish(&mut self) -> SplitText {
        let rest = std::mem::take(&mut self.held);
        let mut out = SplitText::default();
        match self.state {
            State::Opened | State::Inside => out.reasoning = rest,
            State::Before | State::Content => out.content = rest,
            State::Closed => {}
        }
        out
    }

    /// Goes on with the held text; says whether the state changed, so that there may be more to do.
    fn step(&mut self, out: &mut SplitText) -> bool {
        match self.state {
            State::Before => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    return self.enter(State::Opened);
                }
                !OPEN.starts_with(text) && self.enter(State::Content)
            }
            State::Opened => self.drop_leading(|c| c == '\n' || c == '\r', State::Inside),
            State::Inside => self.step_inside(out),
            State::Closed => self.drop_leading(char::is_whitespace, State::Content),
            State::Content => {
                out.content.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn step_inside(&mut self, out: &mut SplitText) -> bool {
        if let Some(at) = self.held.find(CLOSE) {
            out.reasoning
                .push_str(self.held[..at].trim_end_matches(['\n', '\r']));
            self.held.drain(..at + CLOSE.len());
            return self.enter(State::Closed);
        }
        let keep = (0..CLOSE.len())
            .rev()
            .find(|&len| self.held.ends_with(&CLOSE[..len]))
            .unwrap_or(0);
        let body = self.held[..self.held.len() - keep].trim_end_matches(['\n', '\r']);
        let rest = self.held.split_off(body.len());
        out.reasoning
            .push_str(&std::mem::replace(&mut self.held, rest));
        false
    }

    fn drop_leading(&mut self, unwanted: impl Fn(char) -> bool, next: State) -> bool {
        let kept = self.held.trim_start_matches(unwanted).len();
        self.held.drain(..self.held.len() - kept);
        !self.held.is_empty() && self.enter(next)
    }

    fn enter(&mut self, state: State) -> bool {
        self.state = state;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{ReasoningSplitter, ReasoningStart, SplitText};
    use ReasoningStart::{Before, Inside};

    fn split(start: ReasoningStart, chunks: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(start);
        let mut whole = SplitText::default();
        let mut add = |part: SplitText| {
            whole.reasoning.push_str(&part.reasoning);
            whole.content.push_str(&part.content);
        };
        for chunk in chunks {
            add(splitter.push(chunk));
        }
        add(splitter.finish());
        (whole.reasoning, whole.content)
    }

    #[test]
    fn splits_the_same_in_any_two_cuts() {
        for (start, text, reasoning, content) in [
            (Inside, "a b\n</think>\n\nc\n", "a b", "c\n"),
            (Inside, "\na</thin</think>b", "a</thin", "b"),
            (Inside, "</think>\n\nb", "", "b"),
            (Inside, "never closed\n", "never closed\n", ""),
            (Inside, "é\n\nü</think>ß", "é\n\nü", "ß"),
            (Inside, "a</think>b</think>", "a", "b</think>"),
            (
                Before,
                "plain <think>x</think>",
                "",
                "plain <think>x</think>",
            ),
            (Before, "<think>\nx\n</think>\n\ny", "x", "y"),
            (Before, "\n <think>x</think>y", "x", "y"),
            (Before, "<thin", "", "<thin"),
            (Before, "<thinner", "", "<thinner"),
            (Before, "  x", "", "  x"),
            (Before, "", "", ""),
        ] {
            let want = (reasoning.to_owned(), content.to_owned());
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            assert_eq!(split(start, &[text]), want, "{text:?}");
            for &first in &places {
                for &second in places.iter().filter(|&&second| second >= first) {
                    let chunks = [&text[..first], &text[first..second], &text[second..]];
                    assert_eq!(split(start, &chunks), want, "{chunks:?}");
                }
            }
        }
    }

    #[test]
    fn holds_back_only_what_may_be_a_tag() {
        let mut splitter = ReasoningSplitter::new(Inside);
        assert_eq!(splitter.push("one <").reasoning, "one ");
        assert_eq!(splitter.push("b").reasoning, "<b");
        assert!(splitter.is_reasoning());
        assert_eq!(splitter.push("</think>x").content, "x");
        assert!(!splitter.is_reasoning());
    }

    #[test]
    fn a_beginning_tells_where_the_answer_goes_on() {
        for (said, start) in [
            ("The answer", Before),
            ("<think>\nso", Inside),
            ("<think>\nso\n</think>\n\nThe", Before),
        ] {
            assert_eq!(ReasoningStart::of_beginning(said), start, "{said:?}");
        }
    }

    #[test]
    fn the_prompt_tells_where_the_answer_begins() {
        for (prompt, start) in [
            ("<|im_start|>assistant\n<think>\n", Inside),
            ("<|im_start|>assistant\n<think>", Inside),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Before),
            ("", Before),
        ] {
            assert_eq!(ReasoningStart::of_prompt(prompt), start, "{prompt:?}");
        }
    }
}
