//! Where a command's bytes come from: a file, standard input, or a device without end.

use bashkit::{CommandContext, CommandInput, Error, Result};

use super::absolute;

/// Bytes made in one step.
const CHUNK: usize = 1 << 16;

/// An input that is open.
pub(super) enum Source {
    Bytes(Vec<u8>),
    Standard(CommandInput),
    Zeros,
    Random,
}

impl Source {
    /// Opens an operand; `-` is standard input.
    pub(super) async fn open(ctx: &CommandContext<'_>, operand: &str) -> Result<Self> {
        if operand == "-" {
            return Ok(Self::Standard(ctx.stdin.clone()));
        }
        let path = absolute(ctx.cwd, operand);
        Ok(match path.to_str().unwrap_or_default() {
            "/dev/stdin" => Self::Standard(ctx.stdin.clone()),
            "/dev/zero" => Self::Zeros,
            "/dev/random" | "/dev/urandom" => Self::Random,
            _ => Self::Bytes(ctx.fs.read_file(&path).await?),
        })
    }

    /// Returns whether it has no end.
    pub(super) fn is_endless(&self) -> bool {
        matches!(self, Self::Zeros | Self::Random)
    }

    /// Returns the next bytes; none at the end.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(std::mem::take(bytes)),
            Self::Standard(input) => Ok(input.read_chunk().await?.unwrap_or_default()),
            Self::Zeros => Ok(vec![0; CHUNK]),
            Self::Random => random_bytes(CHUNK).map_err(Error::Io),
        }
    }
}

/// Returns bytes of the kernel's chance.
pub(in crate::hermetic) fn random_bytes(count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
