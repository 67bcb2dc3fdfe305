//! Which addresses are public: everything else, in every disguise, is refused.
//!
//! A disguise is an IPv6 address that some translator or tunnel turns into an IPv4 one. They are
//! refused whole, also when the address inside is public: nobody legitimate needs them here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns whether an address is an ordinary public unicast address.
#[must_use]
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Returns whether the machine itself answers at this address, found by asking its routes.
///
/// A datagram socket that is connected sends nothing; the kernel picks the source it would use,
/// and for an address of the machine that is the address itself.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let unspecified: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Without a socket there is no answer, and unknown means refused.
    let Ok(socket) = UdpSocket::bind((unspecified, 0)) else { return true };
    if socket.connect(SocketAddr::new(address, 9)).is_err() {
        // No route: the dial will fail for the same reason.
        return false;
    }
    socket.local_addr().is_ok_and(|local| local.ip() == address)
}

/// A range of addresses, as rules list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Range {
    first: IpAddr,
    prefix: u8,
}

impl Range {
    /// Returns the range, or nothing when bits beyond the prefix are set or it is too long.
    pub(crate) fn new(first: IpAddr, prefix: u8) -> Option<Self> {
        let range = Self { first, prefix };
        (prefix <= width(first) && range.masked(first) == bits(first)).then_some(range)
    }

    /// Returns the range of exactly one address.
    pub(crate) fn single(address: IpAddr) -> Self {
        Self { first: address, prefix: width(address) }
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.masked(address) == bits(self.first)
    }

    pub(crate) fn first(&self) -> IpAddr {
        self.first
    }

    pub(crate) fn prefix(&self) -> u8 {
        self.prefix
    }

    pub(crate) fn is_single(&self) -> bool {
        self.prefix == width(self.first)
    }

    fn masked(&self, address: IpAddr) -> u128 {
        let host_bits = u32::from(width(self.first).saturating_sub(self.prefix));
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        bits(address) & mask
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let refused = match (a, b, c) {
        // This network, private, loopback, link-local (and so the metadata address).
        (0 | 10 | 127, _, _) | (169, 254, _) | (172, 16..=31, _) | (192, 168, _) => true,
        // Shared address space of carriers, which some clouds use for metadata.
        (100, 64..=127, _) => true,
        // Protocol assignments, documentation, relays to 6to4, AS112, benchmarks.
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18..=19, _) | (198, 51, 100) | (203, 0, 113) => {
            true
        }
        (192, 31, 196) | (192, 52, 193) | (192, 175, 48) => true,
        // Azure's platform address is public in form only.
        (168, 63, 129) => address == Ipv4Addr::new(168, 63, 129, 16),
        // Multicast, reserved, broadcast.
        (224..=255, _, _) => true,
        _ => false,
    };
    !refused
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, _, _, f, _, _] = address.segments();
    // Only 2000::/3 is given out as global unicast. This alone refuses loopback, unspecified,
    // IPv4-mapped and -compatible, NAT64 (64:ff9b::/96 and 64:ff9b:1::/48), discard-only, unique
    // local, link-local, site-local (fec0::/10), segment routing and multicast.
    if a & 0xe000 != 0x2000 {
        return false;
    }
    let refused = match (a, b) {
        // 2001::/23 is protocol assignments: Teredo, ORCHID, benchmarks and relatives.
        (0x2001, 0..=0x01ff) => true,
        // Documentation, old and new.
        (0x2001, 0x0db8) => true,
        (0x3fff, 0..=0x0fff) => true,
        // 6to4 carries an IPv4 address inside.
        (0x2002, _) => true,
        // AS112 and the old 6bone.
        (0x2620, 0x004f) => c == 0x8000,
        (0x3ffe, _) => true,
        _ => false,
    };
    // ISATAP: an interface identifier ::0:5efe:a.b.c.d or ::200:5efe:a.b.c.d under any prefix.
    let is_isatap = f == 0x5efe && matches!(address.segments().get(4), Some(0 | 0x0200));
    !refused && !is_isatap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: bool) {
        assert_eq!(is_public(text.parse().unwrap()), expected, "{text}");
    }

    #[test]
    fn only_public_unicast_is_public() {
        for text in ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1"] {
            check(text, true);
        }
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "192.88.99.1",
        ] {
            check(text, false);
        }
    }

    #[test]
    fn disguised_addresses_are_refused() {
        for text in [
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "::1.1.1.1",
            "64:ff9b::7f00:1",
            "64:ff9b::101:101",
            "64:ff9b:1::a00:1",
            "2002:7f00:1::1",
            "2001:0:4136:e378::1",
            "fe80::5efe:10.0.0.1",
            "2606:4700::5efe:10.0.0.1",
            "2606:4700::200:5efe:10.0.0.1",
            "fec0::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "100::1",
            "5f00::1",
            "3fff::1",
            "2001:20::1",
        ] {
            check(text, false);
        }
    }

    #[test]
    fn ranges_contain_what_their_prefix_covers() {
        let range = Range::new("10.0.0.0".parse().unwrap(), 8).unwrap();
        assert!(range.contains("10.255.0.1".parse().unwrap()));
        assert!(!range.contains("11.0.0.0".parse().unwrap()));
        assert!(!range.contains("::a00:0".parse().unwrap()));
        assert!(Range::new("10.0.0.1".parse().unwrap(), 8).is_none());
        assert!(Range::new("10.0.0.0".parse().unwrap(), 33).is_none());
        assert!(Range::new("::".parse().unwrap(), 0).unwrap().contains("::1".parse().unwrap()));
        assert!(Range::single("::1".parse().unwrap()).contains("::1".parse().unwrap()));
    }

    #[test]
    fn the_machine_knows_its_own_addresses() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("1.1.1.1".parse().unwrap()));
    }
}
