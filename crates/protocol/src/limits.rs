//! Resource limits of one run, as requested in a contract and as enforced in a receipt.

use serde::{Deserialize, Serialize};

/// Limits on the whole process tree of one run. A member that is absent is not limited.
///
/// There is no `Default`: whoever builds one says what it permits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Wall-clock time in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// CPU time, user and system, of all processes together, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Memory of all processes together, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads alive at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Open descriptors per process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Size of one file, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// Bytes the run may add to its overlay and private directories together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Files and directories the run may add.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Bytes of stdout and stderr together that are kept before the run is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

/// Names one limit, in outcomes and posture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// Wall-clock time.
    Wall,
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Processes and threads.
    Processes,
    /// Open descriptors.
    OpenFiles,
    /// Size of one file.
    FileSize,
    /// Bytes added on disk.
    Disk,
    /// Files added on disk.
    Inodes,
    /// Output bytes.
    Output,
}

impl LimitKind {
    /// Every limit, in the order of [`Limits`].
    pub const ALL: [Self; 9] = [
        Self::Wall,
        Self::Cpu,
        Self::Memory,
        Self::Processes,
        Self::OpenFiles,
        Self::FileSize,
        Self::Disk,
        Self::Inodes,
        Self::Output,
    ];

    /// Returns the name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::OpenFiles => "open-files",
            Self::FileSize => "file-size",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Output => "output",
        }
    }
}

impl Limits {
    /// Returns limits that limit nothing; the name is long so that nobody types it by accident.
    #[must_use]
    pub const fn danger_unlimited() -> Self {
        Self {
            wall_ms: None,
            cpu_ms: None,
            memory_bytes: None,
            processes: None,
            open_files: None,
            file_bytes: None,
            disk_bytes: None,
            inodes: None,
            output_bytes: None,
        }
    }

    /// Returns the value of one limit.
    #[must_use]
    pub const fn of(&self, kind: LimitKind) -> Option<u64> {
        match kind {
            LimitKind::Wall => self.wall_ms,
            LimitKind::Cpu => self.cpu_ms,
            LimitKind::Memory => self.memory_bytes,
            LimitKind::Processes => self.processes,
            LimitKind::OpenFiles => self.open_files,
            LimitKind::FileSize => self.file_bytes,
            LimitKind::Disk => self.disk_bytes,
            LimitKind::Inodes => self.inodes,
            LimitKind::Output => self.output_bytes,
        }
    }
}
