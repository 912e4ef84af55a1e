//! A prompt that may be made shorter, on its way.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use api_types::{CompressionMode, CompressionOptions, CompressionReport};
use chat::RenderInput;
use compression::{Key, Part, complement, find, plan, remaining};
use tokenizer::Tokenizer;

use crate::compression::skip::Skip;
use crate::compression::{Compressor, Shortened};

/// A prompt, and what is known by now of what to keep of it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) text: Arc<str>,
    /// The share that the request asks for.
    pub(super) keep_ratio: Option<f64>,
    return_prompt: bool,
    ids: Vec<u32>,
    ends: Vec<usize>,
    history_tokens: u32,
    is_opening: bool,
    bodies: Vec<Cutting>,
}

/// A body, its name in the memory, and what is kept of it, in bytes of the body.
#[derive(Debug)]
struct Cutting {
    part: Part,
    key: Key,
    kept: Option<Arc<[Range<usize>]>>,
}

impl Compressor {
    /// What is to be done about the prompt `text` with its `ids`, which is `input` rendered. `None`: nothing.
    pub fn job(
        &self,
        asked: &CompressionOptions,
        input: &RenderInput,
        text: &str,
        ids: &[u32],
        history_tokens: u32,
    ) -> Option<Job> {
        let config = self.config();
        let mode = asked.mode.unwrap_or(config.mode);
        if mode == CompressionMode::Off {
            return None;
        }
        match self.wanted(mode, asked.keep_ratio, input, text, ids, history_tokens) {
            Ok(job) => Some(Job {
                return_prompt: asked.return_prompt,
                ..job
            }),
            Err(skip) => {
                self.skipped(skip);
                None
            }
        }
    }

    fn wanted(
        &self,
        mode: CompressionMode,
        keep_ratio: Option<f64>,
        input: &RenderInput,
        text: &str,
        ids: &[u32],
        history_tokens: u32,
    ) -> Result<Job, Skip> {
        let config = self.config();
        if mode == CompressionMode::Auto && ids.len() < config.threshold {
            return Err(Skip::Short);
        }
        let ends = self.words.tokenizer.ends(ids, text).ok_or(Skip::Text)?;
        let bodies = find(&input.messages, text, |messages| {
            self.words.render(&RenderInput {
                messages,
                tools: input.tools.clone(),
                add_generation_prompt: input.add_generation_prompt,
                kwargs: input.kwargs.clone(),
            })
        });
        let plan = plan(&input.messages, bodies, text, &ends, config.rules);
        let mut memory = self.memory();
        let cutting = |part: Part| {
            let body = &text[part.body.bytes.clone()];
            let alone = memory.body_key(body, keep_ratio);
            if !part.in_opening {
                let kept = part.is_due.then(|| memory.get(&alone)).flatten();
                return Cutting {
                    part,
                    key: alone,
                    kept,
                };
            }
            // Cut as it was when it came, however short or hot it is.
            let first = memory.opening_key(&input.messages, part.body.message, body, keep_ratio);
            let mut kept = memory.get(&first);
            if kept.is_none() && !plan.is_opening && part.is_due {
                kept = memory.get(&alone);
            }
            let key = if plan.is_opening { first } else { alone };
            Cutting { part, key, kept }
        };
        let bodies: Vec<Cutting> = plan.parts.into_iter().map(cutting).collect();
        let concerns =
            |body: &Cutting| body.kept.is_some() || body.part.is_due || body.part.is_long;
        if !bodies.iter().any(concerns) {
            return Err(Skip::Protected);
        }
        Ok(Job {
            text: text.into(),
            keep_ratio,
            return_prompt: false,
            ids: ids.to_vec(),
            ends,
            history_tokens,
            is_opening: plan.is_opening,
            bodies,
        })
    }
}

impl Job {
    /// Whether a worker has to be asked, which takes time.
    pub fn asks(&self) -> bool {
        !self.unknown().is_empty()
    }

    pub(super) fn is_opening(&self) -> bool {
        self.is_opening
    }

    /// The parts that are due, and of which nothing is known.
    pub(super) fn unknown(&self) -> Vec<usize> {
        let parts = 0..self.bodies.len();
        parts
            .filter(|&part| self.bodies[part].part.is_due && self.bodies[part].kept.is_none())
            .collect()
    }

    pub(super) fn part(&self, part: usize) -> &Part {
        &self.bodies[part].part
    }

    /// Takes what of the prompt is kept in a part, beside what is protected of it.
    pub(super) fn keep(
        &mut self,
        part: usize,
        kept: &[Range<usize>],
    ) -> (Key, Arc<[Range<usize>]>) {
        let cutting = &mut self.bodies[part];
        let (body, cut) = (&cutting.part.body.bytes, &cutting.part.cut);
        let inner = kept
            .iter()
            .filter(|kept| cut.start <= kept.start && kept.end <= cut.end);
        let pieces = std::iter::once(body.start..cut.start)
            .chain(inner.cloned())
            .chain(std::iter::once(cut.end..body.end));
        let pieces: Arc<[Range<usize>]> = pieces
            .filter(|piece| !piece.is_empty())
            .map(|piece| piece.start - body.start..piece.end - body.start)
            .collect();
        cutting.kept = Some(Arc::clone(&pieces));
        (cutting.key, pieces)
    }

    /// The prompt without what is not kept.
    pub(super) fn shortened(self, tokenizer: &Tokenizer, elapsed: Duration) -> Shortened {
        let mut cuts = Vec::new();
        for cutting in &self.bodies {
            let Some(kept) = &cutting.kept else { continue };
            let body = &cutting.part.body.bytes;
            let gaps = complement(kept, &(0..body.len()));
            cuts.extend(
                gaps.iter()
                    .map(|gap| gap.start + body.start..gap.end + body.start),
            );
        }
        let is_special = |token: usize| tokenizer.is_special(self.ids[token]);
        let left = remaining(&self.text, &self.ends, &cuts, is_special);
        // The next turn parts from this one where a body is whole now that will be cut then.
        let later = self
            .bodies
            .iter()
            .find(|body| body.kept.is_none() && body.part.is_long);
        let steady = match later {
            Some(body) if !self.is_opening => {
                let start = body.part.body.bytes.start;
                self.ends.partition_point(|&end| end <= start)
            }
            _ => self.ids.len(),
        };
        let history = steady.min(self.history_tokens as usize);
        let history_tokens = left.partition_point(|&token| token < history);
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let ids: Vec<u32> = left.iter().map(|&token| self.ids[token]).collect();
        let report = (left.len() < self.ids.len()).then(|| CompressionReport {
            scope: if self.is_opening {
                "prompt"
            } else {
                "messages"
            },
            original_tokens: count(self.ids.len()),
            kept_tokens: count(left.len()),
            ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            prompt: self.return_prompt.then(|| tokenizer.decode(&ids, true)),
        });
        Shortened {
            ids,
            history_tokens: count(history_tokens),
            report,
        }
    }
}
