//! Tests of safetensors files and folders.

use super::{Dtype, HfFolder, Safetensors};
use std::path::Path;

fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 7);
    bytes
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

#[test]
fn tensors_are_views_with_type_and_shape() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[12,15]},
        "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
    let file = Safetensors::parse(file(header, 15), "f").unwrap();
    let found: Vec<_> =
        file.tensors().map(|t| (t.name, t.dtype, t.shape.to_vec(), t.data.len())).collect();
    assert_eq!(found, [("a", Dtype::Bf16, vec![2, 3], 12), ("b", Dtype::F8E4M3, vec![3], 3)]);
}

#[test]
fn headers_that_lie_are_refused_by_name() {
    let same = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let overlap = r#"{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
        "w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
    let cases = [
        (file(&one("F32", "[2]", "[0,4]"), 4), "f: w: 4 bytes for F32 of shape [2]"),
        (file(&one("F9", "[1]", "[0,4]"), 4), "f: w: dtype \"F9\", expected one of BOOL"),
        (file(&one("U8", "[9]", "[0,9]"), 4), "f: w: data at 0..9 of 4 bytes"),
        (file(&one("U8", "[3]", "[1,4]"), 4), "f: w: data begin at byte"),
        (file(&one("U8", "[3]", "[0,3]"), 4), "f: data: tensors end at byte"),
        (file(&one("U8", "[4294967296,4294967296,2]", "[0,0]"), 0), "f: w: 0 bytes for U8"),
        (file(same, 2), "f: w: a second tensor of this name"),
        (file(overlap, 3), "f: w: data begin at byte"),
        (file("[]", 0), "f: header: "),
        (vec![1, 2], "f: header: 2 bytes, expected at least 8"),
        (vec![0xff; 16], "f: header: 18446744073709551615 bytes long, expected at most 8"),
    ];
    for (bytes, expected) in cases {
        let error = Safetensors::parse(bytes, "f").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let both = [("config.json", b"{}".to_vec()), ("tokenizer.json", b"{}".to_vec())];
    for (name, bytes) in both.iter().chain(files) {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn refusal(path: &Path) -> String {
    HfFolder::open(path).unwrap_err().to_string()
}

#[test]
fn a_folder_that_is_no_model_says_what_it_lacks() {
    let empty = tempfile::tempdir().unwrap();
    let expected = "is no model: it has no config.json, no tokenizer.json, no model.safetensors";
    assert!(refusal(empty.path()).contains(expected));
}

#[test]
fn index_and_shards_agree() {
    let index = |map: &str| {
        ("model.safetensors.index.json", format!(r#"{{"weight_map":{{{map}}}}}"#).into_bytes())
    };
    let shard = |name: &str| one("U8", "[1]", "[0,1]").replace("\"w\"", &format!("\"{name}\""));
    let (a, b) = (("a.st", file(&shard("x"), 1)), ("b.st", file(&shard("y"), 1)));
    let again = ("b.st", file(&shard("x"), 1));
    let good = folder(&[index(r#""x":"a.st","y":"b.st""#), a.clone(), b.clone()]);
    let opened = HfFolder::open(good.path()).unwrap();
    assert_eq!(opened.tensors().map(|t| t.name).collect::<Vec<_>>(), ["x", "y"]);
    assert!(opened.tensor("y").is_some());
    let cases = [
        (index(r#""x":"a.st","y":"a.st""#), b.clone(), "y: a.st has no such tensor"),
        (index(r#""x":"../a.st""#), b.clone(), "expected the name of a file"),
        (index(r#""x":"a.st","y":"b.st""#), again, "y: b.st has no such tensor"),
    ];
    for (index, second, expected) in cases {
        let error = refusal(folder(&[index, a.clone(), second]).path());
        assert!(error.contains(expected), "{error}");
    }
    let two = r#"{"y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let error =
        refusal(folder(&[index(r#""x":"a.st","y":"b.st""#), a, ("b.st", file(two, 2))]).path());
    assert!(error.contains("x: it is in b.st and in a.st"), "{error}");
}

#[test]
fn the_templates_own_file_wins() {
    let config = br#"{"chat_template":[{"name":"default","template":"field"}]}"#.to_vec();
    let weights = ("model.safetensors", file("{}", 0));
    let field = folder(&[weights.clone(), ("tokenizer_config.json", config.clone())]);
    assert_eq!(HfFolder::open(field.path()).unwrap().chat_template(), Some("field"));
    let jinja = ("chat_template.jinja", b"own".to_vec());
    let own = folder(&[weights, ("tokenizer_config.json", config), jinja]);
    assert_eq!(HfFolder::open(own.path()).unwrap().chat_template(), Some("own"));
}
