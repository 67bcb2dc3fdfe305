//! The `warrant` binary. It holds no logic that a library could hold.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(2)
}
