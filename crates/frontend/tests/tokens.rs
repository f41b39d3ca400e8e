//! Token ids of real vocabularies against independent references.

use laneway_artifact::{Gguf, HfFolder};
use laneway_frontend::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn shared() -> PathBuf {
    std::env::var_os("LANEWAY_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    )
}

fn smollm2() -> Gguf {
    let folder = std::env::var_os("LANEWAY_TEST_MODELS")
        .expect("LANEWAY_TEST_MODELS is not set; run `cargo xtask test`, which fetches the models");
    Gguf::open(PathBuf::from(folder).join("smollm2-135m-instruct-q4_1.gguf")).expect("the model")
}

#[test]
fn reference_ids_of_smollm2() {
    let tokenizer = Tokenizer::from_gguf(&smollm2()).unwrap();
    let path = shared().join("reference/smollm2_llamacpp_reference.json");
    let text = std::fs::read_to_string(path).expect("reference data; run `cargo xtask test`");
    let data: Value = serde_json::from_str(&text).unwrap();
    for prompt in data["prompts"].as_array().unwrap() {
        let text = prompt["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(prompt["token_ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{}", prompt["name"]);
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn the_chat_template_of_smollm2() {
    let gguf = smollm2();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = ChatTemplate::from_gguf(&gguf).unwrap().expect("a template");
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Hi"}),
    ];
    let text = template.render(&messages).unwrap();
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                    <|im_start|>assistant\n";
    assert_eq!(text, expected);
    let ids = tokenizer.encode(&text, false).unwrap();
    assert_eq!(ids.iter().filter(|&&id| tokenizer.is_control(id)).count(), 5);
    assert_eq!(tokenizer.eos().first(), Some(&0));
    assert!(tokenizer.eos().contains(&2), "<|im_end|> ends a turn: {:?}", tokenizer.eos());
}

/// Texts on which splits differ: scripts, marks, digits, white space, code.
const TEXTS: [&str; 8] = [
    "The quick brown fox's 12345 jumps, don't they?  I'LL see\n\n\tindeed ",
    "fn main() {\n    let x = 0x1F;\r\n    println!(\"{x:?}\");\n}\n\n\n",
    "北京的秋天很美。日本語のテキスト、한국어 텍스트",
    "e\u{301}te\u{301} naïve résumé Ω≈ç√∫˜µ≤≥÷",
    "👩‍👩‍👧‍👦 🇩🇪 emoji 🏳️‍🌈!",
    "हिन्दी में लिखा हुआ पाठ",
    "a  b   c    d\t\te \u{a0}f\u{3000}g",
    "<|im_start|>user\nHello<|im_end|>\n",
];

#[test]
fn the_hybrid_vocabulary_agrees_with_its_own_tokenizer_file() {
    let folder = shared().join("models/tiny-hybrid");
    let gguf = Gguf::open(folder.join("tiny-hybrid-f16.gguf")).expect("the model");
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let oracle = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    for text in TEXTS {
        let expected = oracle.encode(text, false).unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected.get_ids(), "{text:?}");
    }
}

#[test]
fn long_texts_are_the_same_in_pieces() {
    let tokenizer = Tokenizer::from_gguf(&smollm2()).unwrap();
    let unit = format!("{} ", TEXTS.concat());
    let long = unit.repeat(400_000 / unit.len());
    let ids = tokenizer.encode(&long, false).unwrap();
    assert_eq!(tokenizer.decode(&ids), long);
    // The unit ends at a place where every split cuts, so its tokens repeat.
    let once = tokenizer.encode(&format!("{unit}{unit}"), false).unwrap();
    let second = once.len() - tokenizer.encode(&unit, false).unwrap().len();
    let counts = (ids.len() - once.len()) % second;
    assert_eq!(counts, 0, "{} tokens, {} for two units", ids.len(), once.len());
    for unbroken in ["a".repeat(600_000), " ".repeat(600_000), "漢".repeat(200_000)] {
        let ids = tokenizer.encode(&unbroken, false).unwrap();
        assert_eq!(tokenizer.decode(&ids), unbroken);
    }
}

#[test]
fn random_texts_come_back() {
    let tokenizer = Tokenizer::from_gguf(&smollm2()).unwrap();
    let parts = [
        "<|im_start|>",
        "<|",
        "|>",
        "a",
        "é",
        "漢",
        "👩‍👧",
        " ",
        "\n",
        "\r\n",
        "7",
        "\u{301}",
        "\0",
        "'s",
        "\u{fffd}",
    ];
    let (started, mut state, mut rounds) = (Instant::now(), 1u64, 0);
    while rounds < 2_000 || started.elapsed() < Duration::from_secs(2) {
        rounds += 1;
        let mut text = String::new();
        for _ in 0..state >> 58 {
            // Knuth's MMIX generator.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(parts[(state >> 33) as usize % parts.len()]);
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let ids = tokenizer.encode(&text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids), text, "{text:?}");
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    }
}

#[test]
fn a_folder_and_its_twin_have_the_reference_ids() {
    let path = shared().join("models/tiny-hybrid");
    let folder = HfFolder::open(&path).expect("the folder");
    let gguf = Gguf::open(path.join("tiny-hybrid-f16.gguf")).expect("its twin");
    let (found, twin) =
        (Tokenizer::from_hf(&folder).unwrap(), Tokenizer::from_gguf(&gguf).unwrap());
    let text = std::fs::read_to_string(path.join("golden/golden.json")).expect("golden values");
    let golden: Value = serde_json::from_str(&text).unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    for prompt in prompts {
        let text = prompt["prompt"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
        assert_eq!(found.encode(text, true).unwrap(), ids);
        assert_eq!(twin.encode(text, true).unwrap(), ids);
        assert_eq!(found.decode(&ids), text);
    }
    assert_eq!((found.eos(), found.bos()), (twin.eos(), twin.bos()));
    assert_eq!(found.vocab_size(), twin.vocab_size());
    assert!((8183..8186).all(|id| found.is_control(id)));
    assert!((8186..8192).all(|id| !found.is_control(id)), "think and tool tags are text");
    let template = ChatTemplate::from_hf(&folder).unwrap().expect("a template");
    let user = |content: &str| template.render(&[json!({"role": "user", "content": content})]);
    assert_eq!(user("What is 12 + 7?").unwrap(), prompts[2]["prompt"].as_str().unwrap());
    let code = "Repeat this code exactly:\n\n```python\ndef add(a, b):\n    return a + b\n```";
    assert_eq!(user(code).unwrap(), prompts[4]["prompt"].as_str().unwrap());
}
