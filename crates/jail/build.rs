//! Builds the init program (`src/init/main.rs`): one static file of a few kilobytes without a C
//! library, which the crate carries as bytes.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// No standard library to start or to link, no unwinding, no relocation, nothing optional.
const FLAGS: [&str; 20] = [
    "--edition=2024",
    "--crate-type=bin",
    "--crate-name=init",
    "-Cpanic=abort",
    "-Copt-level=s",
    "-Cdebug-assertions=off",
    "-Coverflow-checks=off",
    "-Cstrip=symbols",
    "-Crelocation-model=static",
    "-Ctarget-feature=+crt-static",
    "-Clinker-flavor=ld.lld",
    "-Clinker=rust-lld",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static",
    "-Clink-arg=-zmax-page-size=4096",
    "-Clink-arg=-znoexecstack",
    "-Clink-arg=--build-id=none",
    "-Clink-arg=--gc-sections",
    "-Adead_code",
    "-Dwarnings",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=src/init");
    println!("cargo::rerun-if-changed=src/syscall.rs");
    let variable = |name: &str| env::var_os(name).unwrap_or_default();
    let out = PathBuf::from(variable("OUT_DIR")).join("init");
    let mut compiler = Command::new(variable("RUSTC"));
    // Flags meant for this workspace (coverage, sanitizers) do not concern a program without a
    // standard library, so none is handed on.
    compiler.args(FLAGS).arg("--target").arg(variable("TARGET")).arg("-o").arg(&out);
    match compiler.arg("src/init/main.rs").status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            println!("cargo::error=the init program could not be built: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("cargo::error=the compiler could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}
