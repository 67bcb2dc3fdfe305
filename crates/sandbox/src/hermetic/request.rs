//! What a worker is asked to run, as it crosses the socket.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::frame::{Decoder, Encoder, broken};

/// One script and everything the worker must know about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The script.
    pub script: String,
    /// What the script sees as `$0`.
    pub arg0: String,
    /// Where it starts, as seen from inside.
    pub cwd: String,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// Which files it sees.
    pub files: FilesRequest,
    /// Whether `curl` and `wget` exist and may ask the supervisor.
    pub network: bool,
    /// A clock and randomness that are the same in every run.
    pub fixed: bool,
    /// The limits the worker holds itself to.
    pub limits: WorkerLimits,
    /// Deliberate misbehavior, for checks that must fail.
    pub fault: Option<WorkerFault>,
}

/// Which files a script sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FilesRequest {
    /// None of the host's: everything is in memory and gone at the end.
    Memory,
    /// The directory whose descriptor comes with the request.
    Directory {
        /// Where the host has it; used only to translate links.
        host_root: PathBuf,
        /// Whether it can be written.
        writable: bool,
        /// Globs of secret files.
        masks: Vec<String>,
        /// Whether repositories' own files can be written.
        repository_granted: bool,
    },
}

/// The limits a worker holds itself to; the supervisor watches them from outside as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WorkerLimits {
    /// CPU time in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Open descriptors.
    pub open_files: Option<u64>,
    /// Size of one file in bytes.
    pub file_bytes: Option<u64>,
    /// Bytes added to files.
    pub disk_bytes: Option<u64>,
    /// Files added.
    pub inodes: Option<u64>,
}

/// Deliberate misbehavior of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerFault {
    /// Never ends.
    Hang,
    /// Ends by a signal.
    Crash,
    /// Tries what only a hole in the interpreter could, and names on stdout what worked.
    TryWalls,
}

impl Request {
    /// Returns the request as a payload.
    pub(super) fn encode(&self) -> Vec<u8> {
        let limits = &self.limits;
        let encoder = Encoder::default()
            .bytes(self.script.as_bytes())
            .bytes(self.arg0.as_bytes())
            .bytes(self.cwd.as_bytes())
            .list(&self.env, |e, (name, value)| e.bytes(name.as_bytes()).bytes(value.as_bytes()))
            .byte(self.network.into())
            .byte(self.fixed.into())
            .optional(limits.cpu_ms)
            .optional(limits.memory_bytes)
            .optional(limits.open_files)
            .optional(limits.file_bytes)
            .optional(limits.disk_bytes)
            .optional(limits.inodes)
            .byte(match self.fault {
                None => 0,
                Some(WorkerFault::Hang) => 1,
                Some(WorkerFault::Crash) => 2,
                Some(WorkerFault::TryWalls) => 3,
            });
        match &self.files {
            FilesRequest::Memory => encoder.byte(0),
            FilesRequest::Directory { host_root, writable, masks, repository_granted } => encoder
                .byte(1)
                .bytes(host_root.as_os_str().as_bytes())
                .byte((*writable).into())
                .byte((*repository_granted).into())
                .list(masks, |e, mask| e.bytes(mask.as_bytes())),
        }
        .finish()
    }

    /// Reads a request from a payload.
    pub(super) fn decode(payload: &[u8]) -> io::Result<Self> {
        let mut decoder = Decoder::new(payload);
        let script = decoder.text()?;
        let arg0 = decoder.text()?;
        let cwd = decoder.text()?;
        let env = decoder.list(|d| Ok((d.text()?, d.text()?)))?;
        let network = decoder.byte()? != 0;
        let fixed = decoder.byte()? != 0;
        let limits = WorkerLimits {
            cpu_ms: decoder.optional()?,
            memory_bytes: decoder.optional()?,
            open_files: decoder.optional()?,
            file_bytes: decoder.optional()?,
            disk_bytes: decoder.optional()?,
            inodes: decoder.optional()?,
        };
        let fault = match decoder.byte()? {
            0 => None,
            1 => Some(WorkerFault::Hang),
            2 => Some(WorkerFault::Crash),
            3 => Some(WorkerFault::TryWalls),
            _ => return Err(broken("unknown fault")),
        };
        let files = match decoder.byte()? {
            0 => FilesRequest::Memory,
            1 => FilesRequest::Directory {
                host_root: std::ffi::OsString::from_vec(decoder.bytes()?.to_vec()).into(),
                writable: decoder.byte()? != 0,
                repository_granted: decoder.byte()? != 0,
                masks: decoder.list(Decoder::text)?,
            },
            _ => return Err(broken("unknown kind of files")),
        };
        Ok(Self { script, arg0, cwd, env, files, network, fixed, limits, fault })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_back_as_it_was() {
        let request = Request {
            script: "echo hi\n".into(),
            arg0: "sh".into(),
            cwd: "/a b".into(),
            env: vec![("A".into(), "1\n2".into()), ("B".into(), String::new())],
            files: FilesRequest::Directory {
                host_root: "/srv/project".into(),
                writable: true,
                masks: vec![".env".into(), "a/**".into()],
                repository_granted: false,
            },
            network: true,
            fixed: false,
            limits: WorkerLimits { cpu_ms: Some(5), inodes: Some(0), ..WorkerLimits::default() },
            fault: Some(WorkerFault::Crash),
        };
        assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        let memory = Request { files: FilesRequest::Memory, fault: None, ..request };
        assert_eq!(Request::decode(&memory.encode()).unwrap(), memory);
        assert!(Request::decode(b"short").is_err());
    }
}
