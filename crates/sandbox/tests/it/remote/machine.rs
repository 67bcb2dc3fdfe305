//! The machine behind a provider on loopback: programs really run, in a mount and network
//! namespace of their own whose `/tmp` is one directory per sandbox.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

/// What a started program says.
pub(crate) enum Word {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// Exit code, or none when a signal ended it.
    End(Option<i32>),
}

/// One sandbox's machine.
pub(crate) struct Machine {
    pub(crate) tmp: tempfile::TempDir,
    /// Whether programs share the host's network.
    pub(crate) is_open: bool,
    started: std::sync::Mutex<Vec<u32>>,
}

impl Drop for Machine {
    /// Nothing of a deleted sandbox lives on.
    fn drop(&mut self) {
        for pid in self.started.lock().unwrap().iter() {
            if let Some(group) = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
        }
    }
}

pub(crate) struct Started {
    pub(crate) words: mpsc::Receiver<Word>,
    pub(crate) stdin: Option<std::process::ChildStdin>,
    pub(crate) pid: u32,
}

impl Machine {
    pub(crate) fn new(is_open: bool) -> Self {
        Self { tmp: tempfile::tempdir().unwrap(), is_open, started: std::sync::Mutex::default() }
    }

    /// Returns where a path of the sandbox lies here.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.tmp.path().join(path.strip_prefix("/tmp").unwrap().trim_start_matches('/'))
    }

    pub(crate) fn start(
        &self,
        line: &str,
        env: &BTreeMap<String, String>,
        has_stdin: bool,
    ) -> Started {
        let script = "mount --bind \"$0\" /tmp && cd / && exec sh -c \"$1\"";
        // A test that ends before its server does leaves nobody behind for long.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60", "unshare", "-r", "-m"]);
        if !self.is_open {
            command.arg("-n");
        }
        command.args(["sh", "-c", script]).arg(self.tmp.path()).arg(line);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.env("IMAGE_VARIABLE", "of the image").envs(env);
        command.stdin(if has_stdin { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().unwrap();
        self.started.lock().unwrap().push(child.id());
        let (tell, words) = mpsc::channel();
        let stdin = child.stdin.take();
        let pid = child.id();
        thread::spawn(move || listen(child, &tell));
        Started { words, stdin, pid }
    }
}

fn listen(mut child: Child, tell: &mpsc::Sender<Word>) {
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pump(&mut stdout, |bytes| tell.send(Word::Stdout(bytes))));
        scope.spawn(|| pump(&mut stderr, |bytes| tell.send(Word::Stderr(bytes))));
    });
    let code = child.wait().unwrap().code();
    let _ = tell.send(Word::End(code));
}

fn pump(from: &mut dyn std::io::Read, tell: impl Fn(Vec<u8>) -> Result<(), mpsc::SendError<Word>>) {
    let mut buffer = vec![0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if tell(buffer[..count].to_vec()).is_err() {
            break;
        }
    }
}

impl Started {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(bytes);
        }
    }
}
