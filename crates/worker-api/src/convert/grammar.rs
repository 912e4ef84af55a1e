//! Grammars.

use generation::Grammar;
use proto::target::v1 as wire;
use proto::target::v1::grammar::Kind;

use crate::error::WorkerError;

pub(super) fn grammar_to_proto(grammar: Grammar) -> wire::Grammar {
    let kind = match grammar {
        Grammar::JsonSchema(text) => Kind::JsonSchema(text),
        Grammar::Regex(text) => Kind::Regex(text),
        Grammar::Lark(text) => Kind::Lark(text),
    };
    wire::Grammar { kind: Some(kind) }
}

pub(super) fn grammar_from_proto(grammar: wire::Grammar) -> Result<Grammar, WorkerError> {
    match grammar.kind {
        Some(Kind::JsonSchema(text)) => Ok(Grammar::JsonSchema(text)),
        Some(Kind::Regex(text)) => Ok(Grammar::Regex(text)),
        Some(Kind::Lark(text)) => Ok(Grammar::Lark(text)),
        None => Err(WorkerError::Invalid(
            "GenerateRequest.grammar is empty, expected json_schema, regex or lark".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_come_back_as_they_went() {
        for kind in [Grammar::JsonSchema, Grammar::Regex, Grammar::Lark] {
            let grammar = kind("text".to_owned());
            let back = grammar_from_proto(grammar_to_proto(grammar.clone()));
            assert_eq!(back.unwrap(), grammar);
        }
    }
}
