//! `tandem chat`: a conversation in the terminal.

use std::io::{IsTerminal, Write, stdout};

use anyhow::{Context, Result};
use console::{Style, Term};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use service::StopSignals;

use crate::cli::ChatArgs;
use crate::client::Server;
use crate::up::{Set, runtime};

const HELP: &str = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer";

pub(crate) fn run(args: &ChatArgs, log: &str) -> Result<()> {
    let runtime = runtime()?;
    let result = runtime.block_on(chat(args, log));
    // A line that is still being read from the terminal holds nobody up.
    runtime.shutdown_background();
    result
}

async fn chat(args: &ChatArgs, log: &str) -> Result<()> {
    let mut signals = StopSignals::install()?;
    if let Some(url) = &args.url {
        return converse(
            args,
            Server::new(url, args.up.router.key()?.as_ref())?,
            &mut signals,
        )
        .await;
    }
    let mut up = args.up.clone();
    // Only this chat uses it, and another server may be running.
    up.router.listen.get_or_insert("127.0.0.1:0".to_owned());
    let mut set = Set::start(&up, log)?;
    let ready = tokio::select! {
        ready = set.ready() => ready.map(|()| true),
        () = signals.recv() => Ok(false),
    };
    let result = match ready {
        Ok(true) => converse(args, set.server.clone(), &mut signals).await,
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    set.stop(&mut signals).await;
    result
}

async fn converse(args: &ChatArgs, server: Server, signals: &mut StopSignals) -> Result<()> {
    let mut chat = Conversation {
        model: server.model().await?,
        server,
        messages: Vec::new(),
        options: options(args),
    };
    chat.reset(args.system.as_deref());
    if let Some(prompt) = &args.prompt {
        return chat.ask(prompt, signals).await;
    }
    let mut editor = rustyline::DefaultEditor::new()?;
    if std::io::stdin().is_terminal() {
        writeln!(stdout(), "{} on {}. {HELP}.", chat.model, chat.server.url())?;
    }
    loop {
        let line;
        (editor, line) = tokio::select! {
            read = read_line(editor) => read?,
            () = signals.recv() => return Ok(()),
        };
        match line.as_deref().map(str::trim) {
            None | Some("/exit") => return Ok(()),
            Some("") => {}
            Some("/reset") => chat.reset(args.system.as_deref()),
            Some(command) if command.starts_with('/') => writeln!(stdout(), "{HELP}")?,
            Some(text) => {
                if let Err(error) = chat.ask(text, signals).await {
                    eprintln!("{}", Style::new().red().apply_to(format!("{error:#}")));
                }
            }
        }
    }
}

/// Reads a line on a thread of its own; `None` at the end of the input.
async fn read_line(
    mut editor: rustyline::DefaultEditor,
) -> Result<(rustyline::DefaultEditor, Option<String>)> {
    tokio::task::spawn_blocking(move || {
        let line = match editor.readline("> ") {
            Ok(line) => Some(line),
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => None,
            Err(error) => return Err(error).context("reading a line"),
        };
        if let Some(line) = &line {
            // Nothing is lost when the history is full.
            let _kept = editor.add_history_entry(line);
        }
        Ok((editor, line))
    })
    .await?
}

/// The request's fields that the user chose.
fn options(args: &ChatArgs) -> Value {
    let mut options = json!({"stream": true, "return_progress": true});
    if let Some(temperature) = args.temperature {
        options["temperature"] = json!(temperature);
    }
    if let Some(max_tokens) = args.max_tokens {
        options["max_tokens"] = json!(max_tokens);
    }
    options
}

struct Conversation {
    server: Server,
    model: String,
    messages: Vec<Value>,
    options: Value,
}

impl Conversation {
    fn reset(&mut self, system: Option<&str>) {
        self.messages.clear();
        if let Some(system) = system {
            self.messages
                .push(json!({"role": "system", "content": system}));
        }
    }

    /// Streams an answer; Ctrl-C ends it and keeps what was said.
    async fn ask(&mut self, text: &str, signals: &mut StopSignals) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": text}));
        let mut body = self.options.clone();
        body["model"] = json!(self.model);
        body["messages"] = json!(self.messages);
        let mut answer = Answer::default();
        let streamed = tokio::select! {
            streamed = answer.stream(&self.server, &body) => streamed,
            () = signals.recv() => Ok(()),
        };
        writeln!(stdout())?;
        if streamed.is_err() {
            self.messages.pop();
            return streamed;
        }
        if let Some(speed) = answer.speed {
            eprintln!("{}", Style::new().dim().apply_to(speed));
        }
        self.messages
            .push(json!({"role": "assistant", "content": answer.content}));
        Ok(())
    }
}

/// What has arrived of an answer.
#[derive(Default)]
struct Answer {
    content: String,
    reasons: bool,
    /// The terminal has a line that says how far the prompt is.
    waits: bool,
    speed: Option<String>,
}

impl Answer {
    async fn stream(&mut self, server: &Server, body: &Value) -> Result<()> {
        let take = |event: Value| self.take(&event);
        server.stream("/v1/chat/completions", body, take).await
    }

    /// Says how far the prompt is, where somebody looks.
    fn wait(&mut self, progress: &Value) -> Result<()> {
        let terminal = Term::stderr();
        if let (true, Some(stage)) = (terminal.is_term(), progress["stage"].as_str()) {
            let (done, total) = (&progress["processed"], &progress["total"]);
            let line = Style::new()
                .dim()
                .apply_to(format!("{stage} {done}/{total}"));
            terminal.clear_line()?;
            terminal.write_str(&line.to_string())?;
            self.waits = true;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<()> {
        if std::mem::take(&mut self.waits) {
            Term::stderr().clear_line()?;
        }
        Ok(())
    }

    fn take(&mut self, event: &Value) -> Result<()> {
        if let Some(progress) = event.get("prompt_progress") {
            return self.wait(progress);
        }
        let delta = &event["choices"][0]["delta"];
        if delta.as_object().is_some_and(|delta| !delta.is_empty()) {
            self.go_on()?;
        }
        if let Some(text) = delta["reasoning_content"].as_str() {
            self.reasons = true;
            write!(stdout(), "{}", Style::new().dim().apply_to(text))?;
        }
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            if std::mem::take(&mut self.reasons) {
                writeln!(stdout())?;
            }
            write!(stdout(), "{text}")?;
            self.content.push_str(text);
        }
        stdout().flush()?;
        let timings = &event["timings"];
        if let (Some(tokens), Some(rate), Some(prompt_ms)) = (
            timings["predicted_n"].as_u64(),
            timings["predicted_per_second"].as_f64(),
            timings["prompt_ms"].as_f64(),
        ) {
            self.speed = Some(format!(
                "{tokens} tokens, {rate:.0} tokens/s, first after {prompt_ms:.0} ms"
            ));
        }
        Ok(())
    }
}
