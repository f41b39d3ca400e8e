//! Reading back what was written, and refusing what is broken.

use super::{Gguf, Value};
use crate::GgufWriter;
use laneway_numerics::WeightFormat;

fn sample() -> GgufWriter {
    GgufWriter::new()
        .with("general.architecture", Value::Text("llama".to_owned()))
        .with("n", Value::Unsigned(7))
        .with("negative", Value::Signed(-7))
        .with("eps", Value::F32(1e-5))
        .with("truth", Value::Bool(true))
        .with("tokens", Value::Texts(vec!["a".to_owned(), "ü".to_owned()]))
        .with("types", Value::Signeds(vec![1, 3]))
        .tensor("w", WeightFormat::Q8_0, &[2, 32], vec![1; 68])
        .tensor("v", WeightFormat::F32, &[3], vec![2; 12])
}

#[test]
fn what_is_written_is_read() {
    let gguf = Gguf::parse(sample().finish(), "sample").unwrap();
    assert_eq!(gguf.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(gguf.unsigned("n"), Ok(Some(7)));
    assert_eq!(gguf.float("eps"), Ok(Some(1e-5)));
    assert_eq!(gguf.truth("truth"), Ok(Some(true)));
    assert_eq!(gguf.integers("types"), Ok(Some(vec![1, 3])));
    assert_eq!(gguf.array_len("tokens"), Ok(Some(2)));
    assert_eq!(gguf.text("absent"), Ok(None));
    let wrong = gguf.unsigned("negative").unwrap_err();
    assert_eq!(wrong, "negative is a signed number, expected a number not below 0");
    let w = gguf.tensor("w").unwrap();
    assert_eq!((w.format, w.shape, w.data.len()), (WeightFormat::Q8_0, &[2, 32][..], 68));
    assert_eq!(gguf.tensor("v").unwrap().data, [2; 12]);
}

#[track_caller]
fn refused(bytes: Vec<u8>, needle: &str) {
    let error = Gguf::parse(bytes, "broken").unwrap_err().to_string();
    assert!(error.contains(needle) && error.starts_with("broken: "), "{error}");
}

#[test]
fn broken_files_are_refused_by_name_and_offset() {
    let good = sample().finish();
    refused(good[..good.len() - 33].to_vec(), "of the data section");
    refused(b"GGML\x03\0\0\0".to_vec(), "expected \"GGUF\"");
    refused([b"GGUF".as_slice(), &[0, 0, 0, 3]].concat(), "big-endian");
    refused([b"GGUF".as_slice(), &[9, 0, 0, 0]].concat(), "versions 2 and 3");
    let mut many = good.clone();
    many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(many, "the file has room for");
    refused(sample().with("n", Value::Bool(true)).finish(), "a second entry of this key");
    refused(sample().tensor("v", WeightFormat::F32, &[1], vec![0; 4]).finish(), "second tensor");
    refused(sample().tensor("x", WeightFormat::Q8_0, &[1, 33], vec![0; 34]).finish(), "x at byte");
    let odd = sample().with("general.alignment", Value::Unsigned(24));
    refused(odd.finish(), "expected a power of two");
}
