//! The messages between the supervisor and its worker, over one socket pair.
//!
//! A frame is one byte of kind, four bytes of length and that many bytes of payload.
//! Both ends are the same binary, so there is no version; a frame that does not parse ends the run.
//! The workspace travels as an open descriptor beside the request, never as a path to open.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The largest payload either end accepts; longer streams are cut into several frames.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;

/// How many bytes of a stream one frame carries.
pub(super) const CHUNK: usize = 64 << 10;

/// What a frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Worker: started and waiting for a request.
    Ready,
    /// Supervisor: what to run.
    Request,
    /// Supervisor: bytes of standard input.
    Stdin,
    /// Supervisor: no more standard input.
    StdinEnd,
    /// Worker: bytes of standard output.
    Stdout,
    /// Worker: bytes of standard error.
    Stderr,
    /// Worker: a request to the network.
    Fetch,
    /// Supervisor: its answer.
    Fetched,
    /// Worker: a limit it watches itself has struck.
    Struck,
    /// Worker: the script ended, with its exit code.
    Exit,
    /// Supervisor: the workspace, as a descriptor; the payload says whether it can be written.
    Root,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Ready,
        Self::Request,
        Self::Stdin,
        Self::StdinEnd,
        Self::Stdout,
        Self::Stderr,
        Self::Fetch,
        Self::Fetched,
        Self::Struck,
        Self::Exit,
        Self::Root,
    ];

    fn from_byte(byte: u8) -> io::Result<Self> {
        Self::ALL.get(usize::from(byte)).copied().ok_or_else(|| broken("unknown frame kind"))
    }
}

/// One message.
#[derive(Debug)]
pub(super) struct Frame {
    /// What it is about.
    pub kind: Kind,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Returns the error for a message that does not follow the format.
pub(super) fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sends one frame.
pub(super) fn send(mut stream: &UnixStream, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let header = header(kind, payload)?;
    let mut slices = [IoSlice::new(&header), IoSlice::new(payload)];
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut rest, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends one frame together with a descriptor, which rides on its first byte.
pub(super) fn send_with_fd(
    stream: &UnixStream,
    kind: Kind,
    payload: &[u8],
    fd: impl AsFd,
) -> io::Result<()> {
    let header = header(kind, payload)?;
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(broken("no room for a descriptor"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL)?;
    if sent != header.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut stream = stream;
    stream.write_all(payload)
}

/// Receives one frame; `None` when the other end is gone.
pub(super) fn receive(mut stream: &UnixStream) -> io::Result<Option<Frame>> {
    let mut header = [0; 5];
    let got = stream.read(&mut header)?;
    if got == 0 {
        return Ok(None);
    }
    if let Some(rest) = header.get_mut(got..) {
        stream.read_exact(rest)?;
    }
    body(stream, header).map(Some)
}

/// Receives one frame and the descriptor that came with it, if any.
pub(super) fn receive_with_fd(
    mut stream: &UnixStream,
) -> io::Result<Option<(Frame, Option<OwnedFd>)>> {
    let mut header = [0; 5];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut header)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?
    .bytes;
    if got == 0 {
        return Ok(None);
    }
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last();
        }
    }
    if let Some(rest) = header.get_mut(got..) {
        stream.read_exact(rest)?;
    }
    Ok(Some((body(stream, header)?, fd)))
}

/// Returns one frame as bytes to be sent later.
pub(super) fn bytes(kind: Kind, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = header(kind, payload)?.to_vec();
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// Takes the first frame off bytes received so far, if it is complete.
pub(super) fn take(received: &mut Vec<u8>, max_payload: usize) -> io::Result<Option<Frame>> {
    let Some(([kind, a, b, c, d], rest)) = received.split_first_chunk() else {
        return Ok(None);
    };
    let kind = Kind::from_byte(*kind)?;
    let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    if length > max_payload {
        return Err(broken("payload too long"));
    }
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let payload = payload.to_vec();
    received.drain(..5 + length);
    Ok(Some(Frame { kind, payload }))
}

fn header(kind: Kind, payload: &[u8]) -> io::Result<[u8; 5]> {
    let length = u32::try_from(payload.len()).map_err(|_| broken("payload too long"))?;
    let [a, b, c, d] = length.to_le_bytes();
    Ok([kind as u8, a, b, c, d])
}

fn body(mut stream: &UnixStream, [kind, a, b, c, d]: [u8; 5]) -> io::Result<Frame> {
    let kind = Kind::from_byte(kind)?;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    // SECURITY: a worker that was taken over cannot make the supervisor allocate without bound.
    if length > MAX_PAYLOAD {
        return Err(broken("payload too long"));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Frame { kind, payload })
}

/// Writes values one after the other.
#[derive(Debug, Default)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    pub(super) fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(super) fn number(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn optional(self, value: Option<u64>) -> Self {
        match value {
            Some(value) => self.byte(1).number(value),
            None => self.byte(0),
        }
    }

    pub(super) fn bytes(self, value: &[u8]) -> Self {
        let mut next = self.number(value.len() as u64);
        next.0.extend_from_slice(value);
        next
    }

    pub(super) fn list<T>(self, values: &[T], each: impl Fn(Self, &T) -> Self) -> Self {
        values.iter().fold(self.number(values.len() as u64), each)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads values one after the other.
#[derive(Debug)]
pub(super) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn byte(&mut self) -> io::Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(|| broken("frame too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn number(&mut self) -> io::Result<u64> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(|| broken("frame too short"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*first))
    }

    pub(super) fn optional(&mut self) -> io::Result<Option<u64>> {
        if self.byte()? == 0 { Ok(None) } else { self.number().map(Some) }
    }

    pub(super) fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| broken("frame too short"))?;
        let (first, rest) =
            self.0.split_at_checked(length).ok_or_else(|| broken("frame too short"))?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn text(&mut self) -> io::Result<String> {
        let bytes = self.bytes()?.to_vec();
        String::from_utf8(bytes).map_err(|_| broken("text is not UTF-8"))
    }

    pub(super) fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> io::Result<T>,
    ) -> io::Result<Vec<T>> {
        let count = self.number()?;
        // Each element takes at least one byte, so a count beyond that is a lie.
        if count > self.0.len() as u64 {
            return Err(broken("frame too short"));
        }
        (0..count).map(|_| each(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_crosses_with_its_descriptor() {
        let (left, right) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/").unwrap();
        send_with_fd(&left, Kind::Request, b"payload", &file).unwrap();
        send(&left, Kind::Stdin, b"").unwrap();
        drop(left);
        let (frame, fd) = receive_with_fd(&right).unwrap().unwrap();
        assert_eq!((frame.kind, frame.payload.as_slice()), (Kind::Request, &b"payload"[..]));
        assert!(fd.is_some());
        assert_eq!(receive(&right).unwrap().unwrap().kind, Kind::Stdin);
        assert!(receive(&right).unwrap().is_none());
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        (&left).write_all(&[0, 0xff, 0xff, 0xff, 0xff]).unwrap();
        assert!(receive(&right).is_err());
        assert!(Decoder::new(&[0xff; 8]).list(Decoder::byte).is_err());
        assert!(Decoder::new(&[9, 0, 0, 0, 0, 0, 0, 0, 1]).bytes().is_err());
    }

    #[test]
    fn every_kind_survives_its_byte() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_byte(kind as u8).unwrap(), kind);
        }
        assert!(Kind::from_byte(200).is_err());
    }
}
