//! How the binary is linked.

#![allow(clippy::print_stdout, reason = "this is how a build script speaks")]

use std::env;
use std::path::Path;
use std::process::Command;

/// A release is linked to a fixed address: otherwise the loader moves 65 000 pointers at every
/// start, which is a tenth of a governed exec. `WARRANT_PIE=1` gives the random address back.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=link.order");
    println!("cargo::rerun-if-env-changed=WARRANT_PIE");
    let is_plain = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if is_plain && is("PROFILE", "release") {
        if !is("WARRANT_PIE", "1") {
            println!("cargo::rustc-link-arg-bins=-no-pie");
        }
        if links_with_lld() {
            in_order();
        }
    }
}

/// Puts the functions that a governed exec calls beside each other (`order/` lists
/// them): they are a twentieth of the code, and strewn over all of it they cost every start 150
/// page faults. A name that no longer exists is passed over.
fn in_order() {
    let Ok(room) = env::var("CARGO_MANIFEST_DIR") else {
        return;
    };
    let list = Path::new(&room).join("link.order");
    for word in [&format!("--symbol-ordering-file={}", list.display()), "--no-warn-symbol-ordering"]
    {
        println!("cargo::rustc-link-arg-bins=-Xlinker");
        println!("cargo::rustc-link-arg-bins={word}");
    }
}

/// Whether the linker is the one that knows such lists: the toolchain's own, which it uses on this
/// target unless somebody named another.
fn links_with_lld() -> bool {
    let is_default = env::var("RUSTC_LINKER").is_err()
        && env::var("CARGO_ENCODED_RUSTFLAGS").map_or(true, |flags| !flags.contains("link"));
    let Some(rustc) = env::var_os("RUSTC") else {
        return false;
    };
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    let has_lld = sysroot.is_ok_and(|said| {
        let root = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let tools = "lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld/ld.lld";
        Path::new(&root).join(tools).exists()
    });
    is("TARGET", "x86_64-unknown-linux-gnu")
        && is("HOST", "x86_64-unknown-linux-gnu")
        && is_default
        && has_lld
}

fn is(name: &str, value: &str) -> bool {
    env::var(name).is_ok_and(|found| found == value)
}
