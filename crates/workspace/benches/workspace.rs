//! Measures the workspace room.

fn main() {}
