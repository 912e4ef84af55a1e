//! `tandem models inspect`: what a GGUF file holds.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result};
use gguf::{GgufFile, Value};

/// Longest list or text shown whole.
const SHOWN_CHARS: usize = 80;

/// Runs the command.
pub(crate) fn run(path: &Path) -> Result<()> {
    let file = GgufFile::open(path).with_context(|| format!("opening model {}", path.display()))?;
    writeln!(
        stdout(),
        "{}: GGUF v{}, {} bytes",
        path.display(),
        file.version(),
        file.file_len()
    )?;
    for (key, value) in file.metadata().iter() {
        writeln!(stdout(), "  {key} = {}", shown(value))?;
    }
    for tensor in file.tensors() {
        writeln!(
            stdout(),
            "  {:40} {:6} {:?}",
            tensor.name,
            tensor.dtype.name(),
            tensor.dims
        )?;
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(array) if array.len() > 16 => return format!("[{} values]", array.len()),
        other => format!("{other:?}"),
    };
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
