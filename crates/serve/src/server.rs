//! Connections: accepted, watched for peers that are gone, and ended in order.
//!
//! hyper is driven directly because its helper hides what matters here: the socket options, the
//! limit on open connections, and what a half-closed peer means.

use crate::config::{CONNECTIONS_MAX, HEADERS_TIME_MAX, PEER_SILENCE_MAX, SHUTDOWN_GRACE};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::Service as _;

/// Pause after a failed accept, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` resolves, then lets running requests end for a while.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            // Reaps connections that have ended, so that the set holds only open ones.
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener, &places) => match accepted {
                Ok((stream, place)) => {
                    connections.spawn(serve(stream, place, router.clone(), stopping.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    stop.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests are cut off at shutdown");
        connections.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    prepare(&stream)?;
    Ok((stream, place))
}

/// Small frames leave at once, and a peer whose machine or network has vanished is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new()
        .with_time(PEER_SILENCE_MAX / 2)
        .with_interval(PEER_SILENCE_MAX / 6);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(PEER_SILENCE_MAX))?;
    Ok(())
}

async fn serve(
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        // A router is always ready; each request gets a clone, which is cheap.
        router.clone().call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIME_MAX)
        // A peer that shuts its write side counts as gone, whatever it may still read: on the
        // wire a closed and a half-closed socket look the same until something is written, and
        // a lane must not compute for nobody. With this set, hyper watches the socket while a
        // handler or a response body is pending, and drops it when the peer's FIN arrives.
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = &mut connection => result,
        () = async { drop(stopping.wait_for(|&stop| stop).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
    drop(place);
}
