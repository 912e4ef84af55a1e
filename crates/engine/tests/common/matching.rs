//! Grammars over the vocabulary of the demo model, and what answers say.

use std::sync::LazyLock;

use engine::{EngineHandle, GenerateStream};
use generation::{GenerateError, GenerateRequest};
use gguf::GgufFile;
use grammar::Grammars;
use vocabulary::Vocabulary;

use super::in_process::demo;

pub static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let file = GgufFile::open(demo("demo-target.gguf")).unwrap();
    Vocabulary::from_gguf(file.metadata()).unwrap()
});

static GRAMMARS: LazyLock<Grammars> =
    LazyLock::new(|| Grammars::new(&VOCABULARY, VOCABULARY.num_tokens()).unwrap());

/// As a worker does it.
pub fn generate(
    handle: &EngineHandle,
    request: &GenerateRequest,
) -> Result<GenerateStream, GenerateError> {
    let Some(grammar) = &request.grammar else {
        return handle.generate(request.clone());
    };
    let matcher = GRAMMARS.compile(grammar);
    let matcher = matcher.map_err(|error| GenerateError::Grammar(error.to_string()))?;
    handle.generate_within(request.clone(), matcher)
}

/// The text of ordinary tokens.
pub fn text(ids: &[u32]) -> String {
    let bytes = ids
        .iter()
        .flat_map(|&id| VOCABULARY.bytes(id, false).unwrap().into_owned());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}
