//! TLS of the in-process client: whom it trusts, and that it speaks HTTP/1.1 only.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Where machines keep the authorities their operator trusts.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Returns a configuration that trusts the built-in authorities, those of the machine's operator,
/// and the extra ones.
pub(crate) fn client_config(extra_roots: &[Vec<u8>]) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let bundle = BUNDLES.iter().find_map(|path| CertificateDer::pem_file_iter(path).ok());
    for certificate in bundle.into_iter().flatten().filter_map(Result::ok) {
        // A bundle may hold certificates that are too old to be read; the others still count.
        drop(roots.add(certificate));
    }
    for root in extra_roots {
        roots.add(CertificateDer::from(root.clone()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let mut config = builder
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
