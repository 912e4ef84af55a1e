//! The grammars of requests, read beside the engine.

use std::sync::Arc;
use std::time::Duration;

use generation::{GenerateError, Grammar};
use gguf::GgufFile;
use grammar::{GrammarError, Grammars, Matcher};
use tokio::sync::Semaphore;
use vocabulary::Vocabulary;

/// Grammars read at a time: each takes a core for so long.
const READERS: usize = 2;
/// Reading a grammar takes milliseconds; its own bounds end the worst within seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads grammars against the vocabulary of the model's file.
#[derive(Debug)]
pub(crate) struct GrammarReader {
    /// Or why there are none; then only requests with a grammar are refused.
    grammars: Result<Arc<Grammars>, GrammarError>,
    readers: Arc<Semaphore>,
}

impl GrammarReader {
    /// For a model with rows of `vocab_size` logits. Blocks for as long as it takes to sort the vocabulary.
    pub fn new(file: &GgufFile, vocab_size: usize) -> Self {
        let vocabulary = Vocabulary::from_gguf(file.metadata());
        let grammars = vocabulary
            .map_err(|error| GrammarError::NoVocabulary(error.to_string()))
            .and_then(|vocabulary| Grammars::new(&vocabulary, vocab_size));
        Self {
            grammars: grammars.map(Arc::new),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// A grammar at its beginning.
    ///
    /// # Errors
    /// [`GenerateError::Grammar`]; [`GenerateError::ShuttingDown`].
    pub async fn read(&self, grammar: Grammar) -> Result<Matcher, GenerateError> {
        let refused = |error: &GrammarError| GenerateError::Grammar(error.to_string());
        let grammars = Arc::clone(self.grammars.as_ref().map_err(refused)?);
        let readers = Arc::clone(&self.readers);
        let read = async {
            let Ok(reader) = readers.acquire_owned().await else {
                return Err(GenerateError::ShuttingDown);
            };
            let read = tokio::task::spawn_blocking(move || {
                // Goes back when the thread is free, also where nobody waits any more.
                let _reader = reader;
                grammars.compile(&grammar)
            });
            match read.await {
                Ok(read) => read.map_err(|error| refused(&error)),
                Err(error) => Err(GenerateError::Grammar(format!("reading it: {error}"))),
            }
        };
        let late = |_| {
            let seconds = PATIENCE.as_secs();
            GenerateError::Grammar(format!("it could not be read within {seconds} s"))
        };
        tokio::time::timeout(PATIENCE, read).await.map_err(late)?
    }
}
