//! The whole tokenizer on a hand-made vocabulary.
#![allow(clippy::unwrap_used)] // Helpers outside test functions.

use std::sync::Arc;

use gguf::{Array, GgufFile, GgufWriter, Value};
use tokenizer::{
    Detokenizer, EncodeOptions, TokenType, Tokenizer, TokenizerError, TokenizerSpec,
    VocabularyError,
};

const PLAIN: EncodeOptions = EncodeOptions {
    add_bos: false,
    parse_special: false,
};
const SPECIAL: EncodeOptions = EncodeOptions {
    add_bos: false,
    parse_special: true,
};
const BOS: EncodeOptions = EncodeOptions {
    add_bos: true,
    parse_special: false,
};

/// 256 byte tokens (id = byte), then a few words and special tokens.
fn spec() -> TokenizerSpec {
    let mut filler = 0x100u32;
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| {
            if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
                return char::from(byte).to_string();
            }
            filler += 1;
            char::from_u32(filler - 1).unwrap().to_string()
        })
        .collect();
    let mut token_types = vec![TokenType::Normal; 256];
    let more = [
        ("he", TokenType::Normal),                  // 256
        ("ll", TokenType::Normal),                  // 257
        ("hell", TokenType::Normal),                // 258
        ("hello", TokenType::Normal),               // 259
        ("Ġhello", TokenType::Normal),              // 260
        ("<|endoftext|>", TokenType::Control),      // 261
        ("<|im_start|>", TokenType::Control),       // 262
        ("<|im_end|>", TokenType::Control),         // 263
        ("<think>", TokenType::UserDefined),        // 264
        ("<think><think>", TokenType::UserDefined), // 265
        ("[PAD]", TokenType::Unused),               // 266
        ("<unk>", TokenType::Unknown),              // 267
        ("Ã©", TokenType::Normal),                  // 268
        ("stop", TokenType::Normal),                // 269, not reachable by merges
    ];
    for (text, kind) in more {
        tokens.push(text.to_owned());
        token_types.push(kind);
    }
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ã ©"];
    TokenizerSpec {
        model: "gpt2".into(),
        pre: Some("qwen2".into()),
        tokens,
        token_types,
        merges: merges.map(str::to_owned).to_vec(),
        bos: Some(262),
        eos: Some(263),
        eot: None,
        add_bos: None,
    }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::new(spec()).unwrap()
}

#[test]
fn encodes_and_decodes() {
    let t = tokenizer();
    assert_eq!(t.encode("", SPECIAL), [] as [u32; 0]);
    assert_eq!(t.encode("hello hello", PLAIN), [259, 260]);
    assert_eq!(t.encode("hell", PLAIN), [258]);
    assert_eq!(t.encode("é stop", PLAIN), [268, 32, 115, 116, 111, 112]);
    assert_eq!(t.decode(&[259, 260, 268, 9999], false), "hello helloé");
    assert_eq!(t.vocab_size(), 270);
    assert_eq!((t.bos(), t.eos()), (Some(262), Some(263)));
    assert_eq!(t.token_text(260), Some("Ġhello"));
    assert_eq!(t.token_text(270), None);
    assert_eq!(t.token_id("Ġhello"), Some(260));
    assert_eq!(t.token_id("nope"), None);
}

#[test]
fn every_byte_round_trips() {
    let t = tokenizer();
    for byte in 0..=255u8 {
        assert_eq!(
            t.token_bytes(u32::from(byte), false).unwrap().as_ref(),
            [byte]
        );
    }
    let text: String = (0..0x300)
        .chain(0x4e00..0x4f00)
        .chain(0x1f600..0x1f640)
        .filter_map(char::from_u32)
        .collect();
    assert_eq!(t.decode(&t.encode(&text, PLAIN), false), text);
}

#[test]
fn special_tokens() {
    let t = tokenizer();
    let text = "<|im_start|>hello<|im_end|>";
    assert_eq!(t.encode(text, SPECIAL), [262, 259, 263]);
    let plain = t.encode(text, PLAIN);
    assert!(plain.iter().all(|&id| !t.is_special(id)));
    assert_eq!(t.decode(&plain, false), text);
    // User-defined tokens always match, the longest first.
    assert_eq!(t.encode("<think>hello", PLAIN), [264, 259]);
    assert_eq!(t.encode("<think><think><think>", PLAIN), [265, 264]);
    // Fragments are split on their own: the space before the token stays a piece.
    assert_eq!(t.encode(" <|im_end|> hello", SPECIAL), [32, 263, 260]);
    // Unused and unknown tokens never match.
    assert_eq!(t.encode("[PAD]", SPECIAL).len(), 5);
    assert_eq!(t.encode("<unk>", SPECIAL).len(), 5);
    assert_eq!(t.encode("<|IM_END|>", SPECIAL).len(), 10);
    assert_eq!(
        t.decode(&[262, 264, 259, 266, 267, 263], false),
        "<think>hello"
    );
    assert_eq!(
        t.decode(&[262, 264, 259, 266, 267, 263], true),
        "<|im_start|><think>hello<unk><|im_end|>"
    );
    assert!(t.is_special(263) && t.is_special(267) && !t.is_special(264) && !t.is_special(9999));
    assert_eq!(t.token_bytes(270, true), None);
}

#[test]
fn beginning_of_sequence() {
    assert_eq!(tokenizer().encode("hello", BOS), [259]);
    let llama = Tokenizer::new(TokenizerSpec {
        pre: Some("llama-bpe".into()),
        ..spec()
    })
    .unwrap();
    assert_eq!(llama.encode("hello", BOS), [262, 259]);
    assert_eq!(llama.encode("hello", PLAIN), [259]);
    // This family takes a piece that is a token without merging.
    assert_eq!(llama.encode("stop", PLAIN), [269]);
    let off = TokenizerSpec {
        pre: Some("llama-bpe".into()),
        add_bos: Some(false),
        ..spec()
    };
    assert_eq!(Tokenizer::new(off).unwrap().encode("hello", BOS), [259]);
    let on = Tokenizer::new(TokenizerSpec {
        add_bos: Some(true),
        ..spec()
    })
    .unwrap();
    assert!(on.adds_bos() && !tokenizer().adds_bos());
    assert_eq!(on.encode("", BOS), [262]);
}

#[test]
fn tokens_end_where_their_bytes_do() {
    let mut spec = spec();
    spec.add_bos = Some(true);
    spec.bos = Some(261);
    let tokenizer = Tokenizer::new(spec).unwrap();
    let text = "hello é<think>\u{7}<|im_end|>";
    let ids = tokenizer.encode(
        text,
        EncodeOptions {
            add_bos: true,
            parse_special: true,
        },
    );
    let ends = tokenizer.ends(&ids, text).unwrap();
    assert_eq!(ends, [0, 5, 6, 8, 15, 16, 26]);
    assert_eq!(tokenizer.ends(&ids[1..], text).unwrap(), ends[1..]);
    // Something else, too little, too much.
    assert_eq!(tokenizer.ends(&ids, "hello e"), None);
    assert_eq!(tokenizer.ends(&ids[..3], text), None);
    assert_eq!(tokenizer.ends(&[259, 259], "hello"), None);
    assert_eq!(tokenizer.ends(&[259, 261], "hello"), None);
}

#[test]
fn stop_ids() {
    assert_eq!(tokenizer().stop_ids(), [261, 263]);
    let other = Tokenizer::new(TokenizerSpec {
        eos: Some(5),
        eot: Some(7),
        ..spec()
    })
    .unwrap();
    assert_eq!(other.stop_ids(), [5, 7, 261, 263]);
    let mut plain = spec();
    plain.token_types[261] = TokenType::Normal;
    plain.token_types[263] = TokenType::UserDefined;
    plain.eos = None;
    assert_eq!(Tokenizer::new(plain).unwrap().stop_ids(), [] as [u32; 0]);
}

#[test]
fn incremental_decoding_equals_whole_decoding() {
    let t = Arc::new(tokenizer());
    let mut state = 11u64;
    let mut next = |n: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let text_ids = t.encode("naïve 中文 🚀 hello e\u{301}", PLAIN);
    for round in 0..3000 {
        let ids: Vec<u32> = (0..next(40))
            .map(|_| match next(3) {
                0 => next(275) as u32,
                _ => text_ids[next(text_ids.len() as u64) as usize],
            })
            .collect();
        let show = round % 2 == 0;
        let mut stream = Detokenizer::new(Arc::clone(&t), show);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        assert_eq!(text, t.decode(&ids, show), "{ids:?}");
    }
    let mut stream = Detokenizer::new(t, false);
    let parts: Vec<String> = "🚀".bytes().map(|b| stream.push(u32::from(b))).collect();
    assert_eq!(parts, ["", "", "", "🚀"]);
}

#[test]
fn contradictions_are_refused() {
    let message = |spec: TokenizerSpec| Tokenizer::new(spec).unwrap_err().to_string();
    assert!(
        message(TokenizerSpec {
            model: "llama".into(),
            ..spec()
        })
        .contains("'llama'")
    );
    assert!(
        message(TokenizerSpec {
            pre: Some("tekken".into()),
            ..spec()
        })
        .contains("'tekken'")
    );
    assert!(
        message(TokenizerSpec {
            eot: Some(270),
            ..spec()
        })
        .contains("eot id 270")
    );
    assert!(
        message(TokenizerSpec {
            token_types: vec![TokenType::Normal],
            ..spec()
        })
        .contains("1 token types")
    );
    assert!(
        message(TokenizerSpec {
            merges: vec!["ab".into()],
            ..spec()
        })
        .contains("'ab'")
    );
    assert!(
        message(TokenizerSpec {
            tokens: vec![],
            token_types: vec![],
            ..spec()
        })
        .contains("empty")
    );
}

/// A GGUF with the keys of `spec`; token types as given.
fn gguf(spec: &TokenizerSpec, types: Vec<i32>) -> GgufFile {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", Value::String("llama".into()));
    writer.set("tokenizer.ggml.model", Value::String(spec.model.clone()));
    writer.set("tokenizer.ggml.pre", Value::String("smollm".into()));
    writer.set(
        "tokenizer.ggml.tokens",
        Value::Array(Array::String(spec.tokens.iter().collect())),
    );
    writer.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    writer.set(
        "tokenizer.ggml.merges",
        Value::Array(Array::String(spec.merges.iter().collect())),
    );
    writer.set("tokenizer.ggml.eos_token_id", Value::U32(263));
    writer.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let bytes = writer.to_bytes().unwrap();
    GgufFile::from_bytes("vocabulary.gguf", bytes).unwrap()
}

#[test]
fn from_gguf_metadata() {
    let spec = spec();
    let mut types = vec![1; 256];
    types.extend([1, 1, 1, 1, 1, 3, 3, 3, 4, 4, 5, 2, 1, 1]);
    let t = Tokenizer::from_gguf(gguf(&spec, types.clone()).metadata()).unwrap();
    assert_eq!(
        t.encode("<think> hello 5<|im_end|>", SPECIAL),
        [264, 260, 32, 53, 263]
    );
    assert_eq!((t.bos(), t.eos(), t.adds_bos()), (None, Some(263), false));
    assert_eq!(t.stop_ids(), [261, 263]);
    types[3] = 9;
    let error = Tokenizer::from_gguf(gguf(&spec, types).metadata()).unwrap_err();
    assert!(matches!(
        error,
        TokenizerError::Vocabulary(VocabularyError::UnknownTokenType { index: 3, value: 9 })
    ));
    let bytes = GgufWriter::new().to_bytes().unwrap();
    let empty = GgufFile::from_bytes("empty.gguf", bytes).unwrap();
    let error = Tokenizer::from_gguf(empty.metadata()).unwrap_err();
    assert!(matches!(
        error,
        TokenizerError::Vocabulary(VocabularyError::MissingKey {
            key: "tokenizer.ggml.model"
        })
    ));
}
