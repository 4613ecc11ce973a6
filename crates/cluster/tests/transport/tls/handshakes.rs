//! Two sides of a connection, and what each says where they do not find together.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_cluster::{Network, TLS_NAME, TlsTcp};
use collie_io::RealDevice;
use rcgen::{CertificateParams, date_time_ymd};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{EARLIER, Held, LATER, NOW, clock, says};
use crate::certificates::{Authority, Signed, write};
use crate::support::CAP;

/// Sends a byte and waits for one: both sides have accepted each other then.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<S> {
    stream.write_all(b"x").await?;
    stream.flush().await?;
    stream.read_u8().await?;
    Ok(stream)
}

/// What the accepting and the connecting side make of each other.
async fn meet<A, C>(
    accepting: &TlsTcp,
    connecting: impl AsyncFnOnce(SocketAddr) -> io::Result<C>,
    then: impl AsyncFnOnce(<TlsTcp as Network>::Stream) -> io::Result<A>,
) -> (io::Result<A>, io::Result<C>) {
    let listener = accepting.bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = async {
        let (stream, _) = accepting.accept(&listener).await?;
        then(accepting.secure(stream).await?).await
    };
    let both = async { tokio::join!(accepted, connecting(address)) };
    timeout(CAP, both).await.expect("an end of the handshake")
}

async fn shake(
    accepting: &TlsTcp,
    connecting: &TlsTcp,
) -> (
    io::Result<<TlsTcp as Network>::Stream>,
    io::Result<<TlsTcp as Network>::Stream>,
) {
    let connect = async |address| exchange(connecting.connect(address).await?).await;
    meet(accepting, connect, exchange).await
}

/// What the two sides say where they do not find together.
async fn apart(accepting: &TlsTcp, connecting: &TlsTcp) -> (String, String) {
    let (accepted, connected) = shake(accepting, connecting).await;
    (
        accepted.expect_err("the accepting side").to_string(),
        connected.expect_err("the connecting side").to_string(),
    )
}

fn both(one: &Authority, other: &Authority) -> String {
    format!("{}{}", one.pem, other.pem)
}

const OTHER_CA: &str = "the peer's certificate is signed by another CA than this node's";
const NOT_ACCEPTED: &str = "the peer does not accept this node's certificate";

#[tokio::test]
async fn nodes_of_one_ca_find_together() {
    let ca = Authority::new("ours");
    let (accepted, connected) = shake(&Held::of(&ca).network, &Held::of(&ca).network).await;
    accepted.unwrap();
    connected.unwrap();
}

#[tokio::test]
async fn a_node_of_another_ca_is_refused_by_the_side_that_connects() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (accepted, connected) = apart(&Held::of(&ours).network, &Held::of(&theirs).network).await;
    says(&connected, &[OTHER_CA, "give all nodes certificates of one CA"]);
    says(&accepted, &[NOT_ACCEPTED, "signed by another CA than the peer's"]);
}

#[tokio::test]
async fn a_node_of_another_ca_is_refused_by_the_side_that_accepts() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let connecting = Held::new(&both(&ours, &theirs), &theirs.node(), NOW);
    let (accepted, connected) = apart(&Held::of(&ours).network, &connecting.network).await;
    says(&accepted, &[OTHER_CA]);
    says(
        &connected,
        &[NOT_ACCEPTED, "signed by another CA than the peer's"],
    );
}

#[tokio::test]
async fn a_certificate_that_has_ended_is_refused_by_either_side() {
    let ca = Authority::new("ours");
    let (old, new) = (Held::of(&ca), long_lived(&ca, LATER));
    let ended =
        "the peer's certificate ended at 2027-01-01 00:00:00 UTC, and it is 2027-06-01 00:00:00 UTC here";
    let (accepted, connected) = apart(&new.network, &old.network).await;
    says(&accepted, &[ended]);
    says(
        &connected,
        &[
            NOT_ACCEPTED,
            "by the peer's clock it has ended, or does not hold yet",
        ],
    );
    let (accepted, connected) = apart(&old.network, &new.network).await;
    says(&connected, &[ended]);
    says(
        &accepted,
        &[
            NOT_ACCEPTED,
            "by the peer's clock it has ended, or does not hold yet",
        ],
    );
}

#[tokio::test]
async fn either_side_refuses_a_certificate_that_does_not_hold_yet() {
    let ca = Authority::new("ours");
    let (young, early) = (Held::of(&ca), long_lived(&ca, EARLIER));
    let not_yet = "the peer's certificate holds from 2026-01-01 00:00:00 UTC on, and it is 2025-06-01 00:00:00 UTC here";
    let (accepted, _) = apart(&early.network, &young.network).await;
    says(&accepted, &[not_yet, "set the clock that is wrong"]);
    let (accepted, connected) = apart(&young.network, &early.network).await;
    says(&connected, &[not_yet, "set the clock that is wrong"]);
    says(&accepted, &[NOT_ACCEPTED]);
}

/// A node whose own certificate holds from 2021 to 2029.
fn long_lived(ca: &Authority, now: u64) -> Held {
    Held::new(&ca.pem, &ca.sign(long), now)
}

fn long(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2021, 1, 1), date_time_ymd(2029, 1, 1));
}

fn roots(ca: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap())
        .unwrap();
    roots
}

fn der(signed: &Signed) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_slice_iter(signed.certificate.as_bytes());
    (
        chain.map(Result::unwrap).collect(),
        PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap(),
    )
}

/// What a node says of a TLS client that is none, and the client of the node.
async fn client(ca: &Authority, presents: Option<&Signed>) -> (String, String) {
    let config = ClientConfig::builder().with_root_certificates(roots(ca));
    let config = match presents {
        Some(signed) => {
            let (chain, key) = der(signed);
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let connector = TlsConnector::from(Arc::new(config));
    let connect = async |address| {
        let stream = TcpStream::connect::<SocketAddr>(address).await?;
        exchange(
            connector
                .connect(ServerName::try_from(TLS_NAME).unwrap(), stream)
                .await?,
        )
        .await
    };
    let (accepted, connected) = meet(&Held::of(ca).network, connect, exchange).await;
    (
        accepted.expect_err("the node").to_string(),
        connected.expect_err("the client").to_string(),
    )
}

fn elsewhere(params: &mut CertificateParams) {
    let other = CertificateParams::new(["www.example.org".to_owned()]).unwrap();
    params.subject_alt_names = other.subject_alt_names;
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let (accepted, connected) = client(&Authority::new("ours"), None).await;
    says(
        &accepted,
        &["the peer presents no certificate", "collie cluster ca node"],
    );
    says(&connected, &["CertificateRequired"]);
}

/// A CA may sign for others than nodes.
#[tokio::test]
async fn a_client_of_the_ca_that_is_no_node_is_refused() {
    let ca = Authority::new("ours");
    let (accepted, _) = client(&ca, Some(&ca.sign(elsewhere))).await;
    says(
        &accepted,
        &[
            "the peer's certificate is not that of a node",
            TLS_NAME,
            "collie cluster ca node",
        ],
    );
}

#[tokio::test]
async fn a_server_of_the_ca_that_is_no_node_is_refused() {
    let ca = Authority::new("ours");
    let (chain, key) = der(&ca.sign(elsewhere));
    let config = ServerConfig::builder().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = async { acceptor.accept(listener.accept().await?.0).await };
    let held = Held::of(&ca);
    let (served, connected) = tokio::join!(served, held.network.connect(address));
    assert!(served.is_err());
    says(
        &connected.unwrap_err().to_string(),
        &["the peer's certificate is not that of a node", TLS_NAME],
    );
}

#[tokio::test]
async fn what_is_no_tls_is_refused_and_so_is_an_early_end() {
    let held = Held::of(&Authority::new("ours"));
    let said = async |bytes: &[u8]| {
        let connect = async |address| {
            let mut stream = TcpStream::connect::<SocketAddr>(address).await?;
            stream.write_all(bytes).await?;
            stream.shutdown().await?;
            Ok(stream)
        };
        let (accepted, _held) = meet(&held.network, connect, exchange).await;
        accepted.unwrap_err().to_string()
    };
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        &[90, 0, 0, 0, 1, 2, 3, 4],
        &[22, 9, 9, 0, 1, 0],
    ] {
        says(
            &said(bytes).await,
            &["the peer does not speak TLS, and this node does"],
        );
    }
    says(
        &said(b"").await,
        &["closed the connection during the TLS handshake"],
    );
}

#[tokio::test]
async fn a_process_that_dies_without_a_farewell_ends_its_connection() {
    let ca = Authority::new("ours");
    let (accepted, connected) = shake(&Held::of(&ca).network, &Held::of(&ca).network).await;
    drop(connected.unwrap());
    let end = timeout(CAP, accepted.unwrap().read(&mut [0; 10])).await.unwrap();
    assert_eq!(end.unwrap(), 0);
}

#[tokio::test]
async fn a_reload_that_fails_changes_nothing() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let node = Held::new(&both(&old, &new), &old.node(), NOW);
    let only_new = Held::of(&new);
    let (_, connected) = shake(&node.network, &only_new.network).await;
    says(&connected.unwrap_err().to_string(), &[OTHER_CA]);
    let of_both = Held::new(&both(&old, &new), &old.node(), NOW);
    let (accepted, connected) = shake(&node.network, &of_both.network).await;
    let standing = (accepted.unwrap(), connected.unwrap());

    // The files are replaced while the node runs, and all clones of its network use them.
    let running = node.network.clone();
    write(node.dir.path(), &both(&old, &new), &new.node());
    node.network.reload().unwrap();
    let (accepted, connected) = shake(&running, &only_new.network).await;
    accepted.unwrap();
    connected.unwrap();
    let (one, other) = tokio::join!(exchange(standing.0), exchange(standing.1));
    one.unwrap();
    other.unwrap();

    // A reload that fails says why.
    let other_key = Signed {
        key: new.node().key,
        ..new.node()
    };
    write(node.dir.path(), &both(&old, &new), &other_key);
    let failed = node.network.reload().unwrap_err().to_string();
    says(
        &failed,
        &["node.key: expected the private key of", "found another one"],
    );
    let (accepted, connected) = shake(&running, &only_new.network).await;
    accepted.unwrap();
    connected.unwrap();
}

#[tokio::test]
async fn a_ca_that_a_reload_takes_away_lets_in_no_peer() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let node = Held::new(&both(&old, &new), &new.node(), NOW);
    let peer = Held::new(&both(&old, &new), &old.node(), NOW);
    let (accepted, connected) = shake(&node.network, &peer.network).await;
    accepted.unwrap();
    connected.unwrap();
    write(node.dir.path(), &new.pem, &new.node());
    node.network.reload().unwrap();
    let (accepted, connected) = apart(&node.network, &peer.network).await;
    says(&accepted, &[OTHER_CA]);
    says(&connected, &[NOT_ACCEPTED]);
}

/// A session that is resumed verifies no certificate. The peer's clock stands still: it would go on
/// as long as it is let in.
#[tokio::test]
async fn a_peer_whose_certificate_has_ended_resumes_no_session() {
    const LAST_HOUR: u64 = NOW + 214 * 86_400 - 3600;
    let ca = Authority::new("ours");
    let clock = clock(LAST_HOUR);
    let dir = tempfile::tempdir().unwrap();
    let files = write(dir.path(), &ca.pem, &ca.sign(long));
    let network = TlsTcp::new(files, Arc::new(RealDevice::new()), Arc::clone(&clock) as _).unwrap();
    let peer = Held::new(&ca.pem, &ca.node(), LAST_HOUR);
    for _ in 0..2 {
        let (accepted, connected) = shake(&network, &peer.network).await;
        accepted.unwrap();
        connected.unwrap();
    }
    clock.0.fetch_add(2 * 3_600_000, Ordering::SeqCst);
    let (accepted, connected) = apart(&network, &peer.network).await;
    says(
        &accepted,
        &["the peer's certificate ended at 2027-01-01 00:00:00 UTC, and it is 2027-01-01 01:00:00 UTC here"],
    );
    says(&connected, &[NOT_ACCEPTED]);
}
