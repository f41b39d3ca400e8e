//! `laneway inspect` from outside.

use crate::support::{assert_says, laneway, model};
use serde_json::{Value, json};

#[test]
fn a_model_is_described_for_reading() {
    let outcome = laneway(&["inspect", &model()]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    assert_says(
        &outcome.stdout,
        &[
            "llama: 30 layers, hidden 576, 9 heads of 64 (3 for keys and values), vocabulary 49152, \
         context 8192",
            "q4_1          210      106168320       66355200",
            "total         272      134515008       96576768",
            "packed for this machine: ",
            "f16             23040      8192",
        ],
    );
}

#[test]
fn and_for_programs() {
    let outcome = laneway(&["inspect", "--json", &model()]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["parameters"], json!(134_515_008));
    assert_eq!(report["native_context"], json!(8192));
    assert_eq!(
        report["formats"][1],
        json!({
            "format": "q4_1", "tensors": 210, "parameters": 106_168_320, "bytes": 66_355_200,
        })
    );
    let kv = report["kv"].as_array().unwrap();
    let f16 = kv.iter().find(|kv| kv["dtype"] == "f16").unwrap();
    assert_eq!(f16["bytes_per_token"], json!(23_040));
    assert!(report["packed_weight_bytes"].as_u64() > Some(0));
}
