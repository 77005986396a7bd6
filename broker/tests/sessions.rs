//! A session from its bootstrap to its end, with a client by hand.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use keyway_broker::{Broker, Idle};
use keyway_fabric::soft::{SoftConfig, SoftFabric, preamble};
use keyway_fabric::{EndpointAddress, EndpointConfig, Event, Fabric, LinkId, Stream};
use keyway_schema::Code;
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE};
use support::{
    Socket, WATCHDOG, await_sessions, begin, builder, dial, expect_end, receive, receive_refusal, receive_welcome, send,
};

/// A client with an endpoint of its own.
struct Client {
    fabric: SoftFabric,
    link: LinkId,
    broker_endpoint: EndpointAddress,
}

impl Client {
    /// Does the bootstrap on a stream, up to Ready.
    fn bootstrap(stream: &mut impl Socket) -> Self {
        begin(stream);
        let broker_endpoint = EndpointAddress(receive_welcome(stream));
        let mut fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let domain = fabric.domain().unwrap();
        let config = EndpointConfig { domain, send_depth: 16, receive_depth: 16, remote_read: false };
        let (link, address) = fabric.endpoint(config).unwrap();
        fabric.connect(link, &broker_endpoint).unwrap();
        send(stream, &Bootstrap::Confirm { endpoint: address.0 });
        assert_eq!(receive(stream), Bootstrap::Ready);
        Self { fabric, link, broker_endpoint }
    }

    fn dial_data(&mut self, broker: &Broker) {
        let mut stream = dial(broker);
        stream.write_all(&preamble(&self.broker_endpoint).unwrap()).unwrap();
        self.fabric.attach(self.link, Stream::Tcp(stream)).unwrap();
    }

    /// Polls until the endpoint says something.
    fn next_event(&mut self) -> Event {
        let mut events = Vec::new();
        while events.is_empty() {
            self.fabric.submit();
            self.fabric.arm();
            self.fabric.poll(&mut events, 1);
            if events.is_empty() {
                keyway_fabric::wait(self.fabric.fd(), Some(WATCHDOG)).unwrap();
            }
        }
        events.remove(0)
    }
}

#[test]
fn an_endpoint_comes_up_over_tcp_and_ends_with_the_bootstrap_stream() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    let mut client = Client::bootstrap(&mut stream);
    assert_eq!(broker.counters().unwrap().sessions, 1);
    client.dial_data(&broker);
    assert!(matches!(client.next_event(), Event::Up { .. }));
    drop(stream);
    assert!(matches!(client.next_event(), Event::Down { .. }));
    await_sessions(&broker, 0);
}

#[test]
fn however_the_reactor_rests_it_serves_and_stops() {
    for idle in [Idle::Latency, Idle::Balanced, Idle::Frugal] {
        let broker = builder().idle(idle).start().unwrap();
        let mut stream = dial(&broker);
        let mut client = Client::bootstrap(&mut stream);
        client.dial_data(&broker);
        assert!(matches!(client.next_event(), Event::Up { .. }));
        drop((stream, client));
        await_sessions(&broker, 0);
        assert!(broker.stop(WATCHDOG).unwrap().drained);
    }
}

#[test]
fn an_endpoint_comes_up_in_process() {
    let broker = builder().start().unwrap();
    let connector = broker.connector();
    let mut stream = connector.bootstrap().unwrap();
    stream.guard();
    let mut client = Client::bootstrap(&mut stream);
    let data = connector.data(&preamble(&client.broker_endpoint).unwrap()).unwrap();
    client.fabric.attach(client.link, data).unwrap();
    assert!(matches!(client.next_event(), Event::Up { .. }));
    let again = connector.data(&preamble(&client.broker_endpoint).unwrap());
    assert!(again.unwrap_err().to_string().contains("no such endpoint"), "an endpoint takes one stream");
    broker.stop(Duration::ZERO).unwrap();
    assert_eq!(connector.bootstrap().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let late = connector.data(&preamble(&client.broker_endpoint).unwrap());
    assert_eq!(late.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn an_endpoint_comes_up_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    let broker = builder().unix(&path).start().unwrap();
    let mut stream = support::dial_unix(&path);
    let mut client = Client::bootstrap(&mut stream);
    let mut data = support::dial_unix(&path);
    data.write_all(&preamble(&client.broker_endpoint).unwrap()).unwrap();
    client.fabric.attach(client.link, Stream::Unix(data)).unwrap();
    assert!(matches!(client.next_event(), Event::Up { .. }));
    drop(broker);
    assert!(!path.exists());
}

#[test]
fn a_session_whose_data_stream_does_not_come_is_ended_and_told() {
    let broker = builder().bootstrap_timeout(Duration::from_millis(100)).start().unwrap();
    let mut stream = dial(&broker);
    let _client = Client::bootstrap(&mut stream);
    let (code, text) = receive_refusal(&mut stream);
    assert_eq!(code, Code::Timeout.number());
    assert!(text.contains("did not connect within 100ms"), "{text}");
    await_sessions(&broker, 0);
}

#[test]
fn a_session_whose_data_stream_says_nothing_is_ended_too() {
    let broker = builder().bootstrap_timeout(Duration::from_millis(100)).start().unwrap();
    let mut stream = dial(&broker);
    let client = Client::bootstrap(&mut stream);
    let mut silent: TcpStream = dial(&broker);
    silent.write_all(&preamble(&client.broker_endpoint).unwrap()).unwrap();
    assert_eq!(receive_refusal(&mut stream).0, Code::Timeout.number());
    // The broker's endpoint has greeted its peer meanwhile.
    let mut greeting = Vec::new();
    silent.read_to_end(&mut greeting).expect("the broker closes the data stream");
    await_sessions(&broker, 0);
}

#[test]
fn who_speaks_on_the_bootstrap_stream_after_ready_loses_the_session() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    let mut client = Client::bootstrap(&mut stream);
    client.dial_data(&broker);
    assert!(matches!(client.next_event(), Event::Up { .. }));
    stream.write_all(b"?").unwrap();
    expect_end(&mut stream);
    await_sessions(&broker, 0);
}

#[test]
fn sessions_run_out_with_a_clear_refusal_and_come_back() {
    let broker = builder().sessions_max(2).start().unwrap();
    let mut streams = [dial(&broker), dial(&broker)];
    for stream in &mut streams {
        begin(stream);
        receive_welcome(stream);
    }
    let mut third = dial(&broker);
    begin(&mut third);
    let (code, text) = receive_refusal(&mut third);
    assert_eq!(code, Code::SessionsExhausted.number());
    assert!(text.contains('2'), "{text}");
    drop(streams);
    await_sessions(&broker, 0);
    let mut fourth = dial(&broker);
    begin(&mut fourth);
    receive_welcome(&mut fourth);
}

#[test]
fn two_hundred_clients_that_come_at_once_all_get_their_sessions() {
    let broker = builder().start().unwrap();
    let mut streams: Vec<_> = (0..200).map(|_| dial(&broker)).collect();
    for stream in &mut streams {
        begin(stream);
    }
    let mut endpoints: Vec<_> = streams.iter_mut().map(receive_welcome).collect();
    endpoints.sort();
    endpoints.dedup();
    assert_eq!(endpoints.len(), 200, "each has an endpoint of its own");
    assert_eq!(broker.counters().unwrap().sessions, 200);
    drop(streams);
    await_sessions(&broker, 0);
}

#[test]
fn a_name_that_would_forge_a_log_line_is_a_name_like_any_other() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    stream.write_all(&PREAMBLE).unwrap();
    let Bootstrap::Hello { role, fabrics, receive_slots, receive_size, .. } = support::hello() else { unreachable!() };
    let name = "x\n2026-01-01 ERROR forged".to_owned();
    send(&mut stream, &Bootstrap::Hello { role, name, fabrics, receive_slots, receive_size });
    receive_welcome(&mut stream);
}
