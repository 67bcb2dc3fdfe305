//! Runs through a network that drops, cuts, doubles and delays replies.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::load::Load;
use super::{Chance, number_of};
use crate::fleet::house::{House, PlaneAccess};

/// What happens to a call on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Nothing.
    Passed,
    /// It arrives after others that were sent later.
    Delayed,
    /// The plane does it, and nobody hears of it.
    ReplyDropped,
    /// Half of the reply arrives.
    ReplyCut,
    /// The reply arrives twice.
    ReplyDoubled,
    /// The plane gets the call twice, and the second reply arrives.
    CallDoubled,
}

/// A proxy that misbehaves at one reply of five.
struct FaultyProxy {
    url: String,
    fates: Arc<Mutex<BTreeMap<Fate, u32>>>,
}

impl FaultyProxy {
    fn start(plane: &str, chance: Chance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let fates: Arc<Mutex<BTreeMap<Fate, u32>>> = Arc::default();
        let (counted, chance) = (Arc::clone(&fates), Arc::new(Mutex::new(chance)));
        let plane = plane.to_owned();
        // It ends with the process of the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (plane, counted, chance) =
                    (plane.clone(), Arc::clone(&counted), Arc::clone(&chance));
                std::thread::spawn(move || {
                    let fate_of = || {
                        let fate = draw(&mut chance.lock().unwrap());
                        *counted.lock().unwrap().entry(fate).or_default() += 1;
                        fate
                    };
                    // A broken connection is what this is about.
                    let _ = carry(client, &plane, fate_of);
                });
            }
        });
        Self { url, fates }
    }

    fn fates(&self) -> MutexGuard<'_, BTreeMap<Fate, u32>> {
        self.fates.lock().unwrap()
    }
}

fn draw(chance: &mut Chance) -> Fate {
    match chance.below(100) {
        0..5 => Fate::ReplyDropped,
        5..10 => Fate::ReplyCut,
        10..14 => Fate::ReplyDoubled,
        14..20 => Fate::CallDoubled,
        20..30 => Fate::Delayed,
        _ => Fate::Passed,
    }
}

/// Carries one call after another until something ends the connection.
fn carry(client: TcpStream, plane: &str, fate_of: impl Fn() -> Fate) -> io::Result<()> {
    let mut calls = BufReader::new(client.try_clone()?);
    let mut client = client;
    loop {
        let Some(call) = read_call(&mut calls)? else { return Ok(()) };
        let fate = fate_of();
        let mut reply = ask(plane, &call)?;
        match fate {
            Fate::Passed => client.write_all(&reply)?,
            Fate::Delayed => {
                std::thread::sleep(Duration::from_millis(250));
                client.write_all(&reply)?;
            }
            Fate::CallDoubled => {
                reply = ask(plane, &call)?;
                client.write_all(&reply)?;
            }
            Fate::ReplyDropped => return client.shutdown(Shutdown::Both),
            Fate::ReplyCut => {
                client.write_all(&reply[..reply.len() / 2])?;
                return client.shutdown(Shutdown::Both);
            }
            Fate::ReplyDoubled => {
                client.write_all(&reply)?;
                client.write_all(&reply)?;
                return client.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Reads a call with its body; none when the connection is over.
fn read_call(calls: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let (mut call, mut length) = (Vec::new(), 0);
    loop {
        let from = call.len();
        if calls.read_until(b'\n', &mut call)? == 0 {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&call[from..]).to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().map_err(io::Error::other)?;
        }
        assert!(!line.starts_with("transfer-encoding:"), "{line}");
        if line == "\r\n" {
            break;
        }
    }
    let from = call.len();
    call.resize(from + length, 0);
    calls.read_exact(&mut call[from..])?;
    Ok(Some(call))
}

/// Has the plane answer a call on a connection of its own.
fn ask(plane: &str, call: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(plane)?;
    let end_of_line = call.windows(2).position(|pair| pair == b"\r\n").unwrap_or_default() + 2;
    stream.write_all(&call[..end_of_line])?;
    stream.write_all(b"connection: close\r\n")?;
    stream.write_all(&call[end_of_line..])?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(reply)
}

#[test]
fn runs_through_a_faulty_network_all_complete_once() {
    let wanted = number_of("WARRANT_FAULTS_PROXY_RUNS", 8);
    let house = House::new();
    let plane = house.start_plane("127.0.0.1:0");
    let chance = Chance::new();
    println!("proxy runs: WARRANT_FAULTS_SEED={}", chance.seed);
    let proxy = FaultyProxy::start(&plane.address(), chance);
    let _runners = ["one", "two"].map(|name| house.start_runner_at(name, &proxy.url));
    let access = PlaneAccess { url: proxy.url.clone(), ..house.access() };
    let load = Load::of(&house, access);
    let runs = load.submit(wanted);
    assert_eq!(runs.len() as u64, wanted);
    let ends = load.check(&house, &runs);
    println!("proxy runs: {wanted} runs, ends {ends:?}, calls {:?}", proxy.fates());
    assert_eq!(ends.get("completed").copied(), Some(runs.len() as u32), "{ends:?}");
    let broken: u32 = proxy
        .fates()
        .iter()
        .map(|(fate, count)| match fate {
            Fate::Passed | Fate::Delayed => 0,
            _ => *count,
        })
        .sum();
    assert!(broken > 0, "nothing was broken: {:?}", proxy.fates());
}
