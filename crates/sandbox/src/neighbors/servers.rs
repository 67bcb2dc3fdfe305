//! What programs of a jail listen on, as the kernel tells of their network.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use warrant_jail::Family;

/// Of a table no more is read than this; those who listen come first in it.
const MOST_BYTES: u64 = 64 * 1024;
/// How the tables call the state of listening.
const LISTENS: &str = "0A";

/// A port of loopback on which a program listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Server {
    pub(crate) family: Family,
    pub(crate) port: u16,
}

/// The tables of one network. They are opened once, so that no other process that gets the same
/// number later is taken for this one.
pub(super) struct Tables {
    files: Vec<File>,
}

impl Tables {
    /// Opens the tables of the network that a process is in; one that cannot be read is empty.
    pub(super) fn of(pid: i32) -> Self {
        let open = |name: &str| File::open(format!("/proc/{pid}/net/{name}")).ok();
        Self { files: ["tcp", "tcp6"].into_iter().filter_map(open).collect() }
    }

    /// Returns what is listened on now at loopback, or at every address.
    pub(super) fn servers(&self) -> BTreeSet<Server> {
        let mut servers = BTreeSet::new();
        for mut file in &self.files {
            let mut text = String::new();
            let read = file
                .seek(SeekFrom::Start(0))
                .and_then(|_| file.take(MOST_BYTES).read_to_string(&mut text));
            if read.is_ok() {
                servers.extend(text.lines().flat_map(of_line));
            }
        }
        servers
    }
}

/// Returns what a line of a table says is listened on.
fn of_line(line: &str) -> Vec<Server> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (Some(local), Some(LISTENS)) = (words.next(), words.nth(1)) else { return Vec::new() };
    let Some((address, port)) = local.split_once(':') else { return Vec::new() };
    let Ok(port) = u16::from_str_radix(port, 16) else { return Vec::new() };
    // Four bytes each, in the order of the machine.
    let families: &[Family] = match address {
        "00000000" | "0100007F" | "0000000000000000FFFF00000100007F" => &[Family::V4],
        "00000000000000000000000001000000" => &[Family::V6],
        "00000000000000000000000000000000" => &[Family::V4, Family::V6],
        _ => &[],
    };
    families.iter().map(|family| Server { family: *family, port }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(local: &str, state: &str, expected: &[Family]) {
        let line = format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000");
        let expected: Vec<Server> =
            expected.iter().map(|family| Server { family: *family, port: 8000 }).collect();
        assert_eq!(of_line(&line), expected, "{line}");
    }

    #[test]
    fn loopback_and_every_address_are_listened_on_and_nothing_else_counts() {
        check("00000000:1F40", "0A", &[Family::V4]);
        check("0100007F:1F40", "0A", &[Family::V4]);
        check("0100007F:1F40", "01", &[]);
        check("0101A8C0:1F40", "0A", &[]);
        check("00000000000000000000000000000000:1F40", "0A", &[Family::V4, Family::V6]);
        check("00000000000000000000000001000000:1F40", "0A", &[Family::V6]);
        check("0000000000000000FFFF00000100007F:1F40", "0A", &[Family::V4]);
        assert_eq!(of_line("  sl  local_address rem_address   st tx_queue rx_queue"), []);
        assert_eq!(of_line(""), []);
    }
}
