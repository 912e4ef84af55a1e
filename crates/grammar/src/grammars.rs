//! Grammars read against a vocabulary.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use generation::Grammar;
use llguidance::ParserFactory;
use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use vocabulary::{TokenType, Vocabulary};

use crate::cache::Cache;
use crate::error::{GrammarError, words};
use crate::matcher::Matcher;
use crate::schema::prepare;

/// Bytes that no text begins with: tokens of such bytes are names of control tokens to llguidance.
const CONTROL_MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// States of a grammar's lexer at most, some 2 KiB each. A schema of a hundred fields has some thousand.
const MAX_LEXER_STATES: usize = 20_000;

/// Reads grammars for one model. Each text is read once as long as it is remembered.
pub struct Grammars {
    factory: ParserFactory,
    /// Held for moments only, never while a grammar is read.
    cache: Mutex<Cache>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Grammars over `vocabulary`, for a model whose rows of logits have `vocab_size` values: those behind the last token are
    /// never allowed. Takes some time where there are many tokens.
    ///
    /// # Errors
    /// The model has fewer rows than the vocabulary has tokens.
    pub fn new(vocabulary: &Vocabulary, vocab_size: usize) -> Result<Self, GrammarError> {
        let tokens = vocabulary.num_tokens();
        let rows = u32::try_from(vocab_size).ok();
        let Some(rows) = rows.filter(|_| vocab_size >= tokens) else {
            let words = format!("it has {tokens} tokens, and the model {vocab_size}");
            return Err(GrammarError::NoVocabulary(words));
        };
        let bytes: Vec<Vec<u8>> = (0..rows).map(|id| token_bytes(vocabulary, id)).collect();
        // Where an answer ends is told by `Matcher::may_end`, and no token says it.
        let trie = TokTrie::from(&TokRxInfo::new(rows, INVALID_TOKEN), &bytes);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env)
            .map_err(|error| GrammarError::NoVocabulary(words(&error)))?;
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: MAX_LEXER_STATES,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        factory.quiet();
        Ok(Self {
            factory,
            cache: Mutex::default(),
        })
    }

    /// Reads a grammar, or remembers it. Takes some milliseconds for a usual one, and is bounded for the others; not to be called
    /// where something waits.
    ///
    /// # Errors
    /// It is none, it asks for what cannot be enforced, or it is beyond the bounds.
    pub fn compile(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        let known = self.cache().get(grammar).map(Matcher::independent);
        if let Some(fresh) = known {
            return Ok(fresh);
        }
        let parser = self.factory.create_parser(top_level(grammar)?);
        let parser = parser.map_err(|error| GrammarError::Refused(words(&error)))?;
        let fresh = Matcher::new(parser)?;
        self.cache().put(grammar.clone(), fresh.independent());
        Ok(fresh)
    }

    /// The cache is whole between any two of its methods, so a panic elsewhere under the lock does no harm.
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn top_level(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    let grammar = match grammar {
        Grammar::JsonSchema(text) => GrammarWithLexer::from_json_schema(prepare(text)?),
        Grammar::Regex(text) => GrammarWithLexer::from_regex(text),
        Grammar::Lark(text) => GrammarWithLexer::from_lark(text.clone()),
    };
    Ok(TopLevelGrammar::from_grammar(grammar))
}

/// The bytes of a token as llguidance wants them; none for those that are never allowed.
fn token_bytes(vocabulary: &Vocabulary, id: u32) -> Vec<u8> {
    let bytes = vocabulary.bytes(id, false).unwrap_or_default();
    if vocabulary.kind(id) == Some(TokenType::Control) {
        // Allowed where a grammar names it, and nowhere else.
        let name = vocabulary.text(id).unwrap_or_default();
        return [&[CONTROL_MARK], name.as_bytes()].concat();
    }
    if bytes.first() == Some(&CONTROL_MARK) {
        return Vec::new();
    }
    bytes.into_owned()
}
