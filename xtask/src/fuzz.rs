//! A short run of every fuzz target, on the stable toolchain.
//!
//! The targets are built with coverage counters, which stable rustc can insert, so libFuzzer finds
//! its way as on nightly; only the sanitizers are missing. A long run is `cargo +nightly fuzz run`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// How much each target is tried: at most so many inputs, at most so many seconds.
const BOUNDS: [&str; 2] = ["-runs=20000", "-max_total_time=10"];

const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1";

/// Builds and runs every target for a few seconds.
///
/// # Errors
/// A sentence naming the target that failed.
pub(crate) fn smoke() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let fuzz = root.join("fuzz");
    let host = host()?;
    // With an explicit target the flags reach no build script.
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked", "--target", &host, "--manifest-path"])
        .arg(fuzz.join("Cargo.toml"))
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", fuzz.join("target"))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the fuzz targets cannot be built".to_owned());
    }
    for target in targets(&fuzz)? {
        let name = target.display();
        let binary = fuzz.join("target").join(&host).join("debug").join(&target);
        // What it finds is written where git does not look.
        let ran = Command::new(binary).args(BOUNDS).current_dir(fuzz.join("target")).output();
        let ran = ran.map_err(|error| format!("fuzz target {name} did not start: {error}"))?;
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr);
            let tail: Vec<&str> = said.lines().rev().take(20).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            return Err(format!("fuzz target {name} found something:\n{}", tail.join("\n")));
        }
    }
    Ok(())
}

/// Returns the names of the targets.
fn targets(fuzz: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = std::fs::read_dir(fuzz.join("fuzz_targets"))
        .map_err(|error| format!("the fuzz targets cannot be listed: {error}"))?;
    let mut names: Vec<PathBuf> =
        listed.filter_map(|entry| Some(PathBuf::from(entry.ok()?.path().file_stem()?))).collect();
    names.sort();
    Ok(names)
}

/// Returns the triple of this machine.
fn host() -> Result<String, String> {
    let said = Command::new("rustc").arg("-vV").output();
    let said = said.map_err(|error| format!("rustc did not start: {error}"))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = said.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "rustc does not tell its host".to_owned())
}
