//! How the binary is linked.

#![allow(clippy::print_stdout, reason = "this is how a build script speaks")]

use std::env;

/// A release is linked to a fixed address: otherwise the loader moves 65 000 pointers at every
/// start, which is a tenth of a governed exec. `WARRANT_PIE=1` gives the random address back.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WARRANT_PIE");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let is_plain = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if is_plain && is("PROFILE", "release") && !is("WARRANT_PIE", "1") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
