//! `tandem probe`: intermediate results, to hold against other implementations.

mod compress;
mod draft;
mod perplexity;
mod tree;

use std::collections::HashMap;
use std::io::{Read, Write, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail};
use chat::{ChatTemplate, RenderInput};
use gguf::GgufFile;
use models::{Batch, BatchSegment, LogitsWanted};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use speculative::TreeOptions;
use tokenizer::{EncodeOptions, Tokenizer};

use crate::cli::{ModelArgs, ProbeCommand};
use crate::session;

/// Runs the command.
pub(crate) fn run(command: &ProbeCommand) -> Result<()> {
    match command {
        ProbeCommand::Target {
            model,
            tokens,
            features,
            rows,
            out,
        } => target(model, tokens, features, usize::from(*rows), out),
        ProbeCommand::Draft(args) => draft::run(args),
        ProbeCommand::Perplexity(args) => perplexity::run(args),
        ProbeCommand::Tree {
            logits,
            tensor,
            budget,
            chain_seed,
            out,
        } => {
            let options = TreeOptions {
                budget: *budget,
                chain_seed: *chain_seed,
            };
            tree::run(logits, tensor.as_deref(), options, out)
        }
        ProbeCommand::Compress(args) => compress::run(args),
        ProbeCommand::Tokenize { model, no_special } => tokenize(model, !no_special),
        ProbeCommand::Template {
            model,
            messages,
            chat_template_file,
        } => template(model, messages, chat_template_file.as_deref()),
    }
}

fn target(
    args: &ModelArgs,
    tokens: &Path,
    features: &[usize],
    rows: usize,
    out: &Path,
) -> Result<()> {
    let tokens = session::read_tokens(tokens)?;
    let file = session::open(args.model.as_deref())?;
    let mut model = session::load(&file, args, session::device(args)?)?;
    let sequence = model.create_sequence()?;
    let mut logits = Vec::new();
    let mut hidden: Vec<Vec<f32>> = vec![Vec::new(); features.len()];
    for piece in tokens.chunks(rows) {
        let segment = BatchSegment {
            sequence,
            tokens: piece.to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: LogitsWanted::All,
        };
        let output = model.forward(&Batch {
            segments: vec![segment],
            capture_layers: features.to_vec(),
        })?;
        logits.extend(output.logits);
        let rows = model.features(0..piece.len());
        for (part, row) in rows.chunks_exact(model.config().hidden_size).enumerate() {
            hidden[part % features.len()].extend_from_slice(row);
        }
    }
    let mut tensors = HashMap::new();
    let vocab_size = model.config().vocab_size;
    tensors.insert("logits".to_owned(), (logits, vocab_size));
    for (layer, rows) in features.iter().zip(hidden) {
        let hidden_size = model.config().hidden_size;
        tensors.insert(format!("hidden.{layer}"), (rows, hidden_size));
    }
    write_tensors(&tensors, out)
}

/// Writes f32 tensors: by name, values and row length.
fn write_tensors(tensors: &HashMap<String, (Vec<f32>, usize)>, out: &Path) -> Result<()> {
    let bytes =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let tensors: HashMap<&String, (Vec<u8>, Vec<usize>)> = tensors
        .iter()
        .map(|(name, (values, width))| (name, (bytes(values), vec![values.len() / width, *width])))
        .collect();
    let views = tensors
        .iter()
        .map(|(name, (bytes, shape))| {
            Ok((*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?))
        })
        .collect::<Result<HashMap<_, _>>>()?;
    safetensors::serialize_to_file(views, None, out)
        .with_context(|| format!("writing {}", out.display()))
}

fn tokenize(args: &ModelArgs, parse_special: bool) -> Result<()> {
    let file = session::open(args.model.as_deref())?;
    let tokenizer = Tokenizer::from_gguf(file.metadata())?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("reading standard input as UTF-8")?;
    let ids = tokenizer.encode(
        &text,
        EncodeOptions {
            add_bos: true,
            parse_special,
        },
    );
    writeln!(stdout(), "{}", serde_json::to_string(&ids)?)?;
    Ok(())
}

/// The model's own template, or the one of a file, or plain ChatML.
fn chat_template(
    file: &GgufFile,
    tokenizer: &Tokenizer,
    path: Option<&Path>,
) -> Result<ChatTemplate> {
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
            .to_owned()
    };
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    let source = match path {
        Some(path) => Some(
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
        ),
        None => file
            .metadata()
            .str("tokenizer.chat_template")?
            .map(str::to_owned),
    };
    match source {
        Some(source) => Ok(ChatTemplate::new(&source, &bos, &eos)?),
        None => Ok(ChatTemplate::fallback_chatml()?),
    }
}

fn template(args: &ModelArgs, messages: &Path, path: Option<&Path>) -> Result<()> {
    let file = session::open(args.model.as_deref())?;
    let tokenizer = Tokenizer::from_gguf(file.metadata())?;
    let template = chat_template(&file, &tokenizer, path)?;
    let text = std::fs::read_to_string(messages)
        .with_context(|| format!("reading {}", messages.display()))?;
    let value: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is not JSON", messages.display()))?;
    let mut input = RenderInput {
        add_generation_prompt: true,
        ..RenderInput::default()
    };
    match value {
        Value::Array(messages) => input.messages = messages,
        Value::Object(mut object) => {
            let Some(Value::Array(messages)) = object.remove("messages") else {
                bail!("{}: `messages` must be a list", messages.display());
            };
            input.messages = messages;
            if let Some(Value::Array(tools)) = object.remove("tools") {
                input.tools = Some(tools);
            }
            if let Some(Value::Bool(wanted)) = object.remove("add_generation_prompt") {
                input.add_generation_prompt = wanted;
            }
            if let Some(Value::Object(kwargs)) = object.remove("kwargs") {
                input.kwargs = kwargs;
            }
        }
        _ => bail!(
            "{}: expected a list of messages or an object",
            messages.display()
        ),
    }
    write!(stdout(), "{}", template.render(&input)?)?;
    Ok(())
}
