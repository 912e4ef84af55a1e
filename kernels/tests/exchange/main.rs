//! Tensors from the memory of one process's device into that of another's: two real processes, the channel as it is, and the
//! emulated GPU unless `TANDEM_TEST_DEVICES` names others, of which the first receives and the last sends.
#![allow(clippy::unwrap_used)]

mod peer;
mod words;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{Buffer, Device, DeviceName, open_device};
use peer::Peer;
use tensor_channel::{
    ChannelDevice, ChannelError, ChannelSpec, Descriptor, ElementType, Ends, LinkSpec,
    MemoryHandle, Offer, OfferOptions, Tag, Transport, attach, available, choose, offer,
};

/// Longer than anything takes.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Several times around the ring.
const MESSAGES: usize = 400;

const LINK: LinkSpec = LinkSpec {
    inbound: ChannelSpec {
        element: ElementType::F32,
        row_len: 100,
        slot_rows: 5,
        slots: 3,
    },
    outbound: ChannelSpec {
        element: ElementType::U8,
        row_len: 8,
        slot_rows: 4,
        slots: 2,
    },
};

/// Values of a slot.
const SLOT_LEN: usize = 500;

/// The other process of these tests; nothing without a task.
#[test]
#[ignore = "the other tests start it"]
fn peer() {
    let task = peer::listen();
    let Some((task, rest)) = task.split_first() else {
        return;
    };
    match task.as_str() {
        "write" => write(rest),
        "read" => read(rest),
        "hold" => hold(rest),
        "offer" => only_offer(rest),
        other => panic!("no task {other}"),
    }
}

fn devices() -> (DeviceName, DeviceName) {
    let asked = std::env::var("TANDEM_TEST_DEVICES").unwrap_or_default();
    let named = asked.split(',').filter_map(|name| name.parse().ok());
    let mut gpus = named.filter(|name| *name != DeviceName::Cpu);
    let first = gpus.next().unwrap_or(DeviceName::Emulated);
    (first, gpus.next_back().unwrap_or(first))
}

fn reader_device() -> DeviceName {
    devices().0
}

fn writer_device() -> DeviceName {
    devices().1
}

fn device(name: DeviceName) -> Arc<dyn Device> {
    open_device(name, 1).unwrap()
}

/// The transport of the devices' memory.
fn memory_transport() -> Transport {
    writer_device().memory_transport().unwrap()
}

fn offered(transport: Transport, device: &dyn Device) -> Offer {
    let options = OfferOptions {
        instance: format!("exchange-{}", std::process::id()),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    offer(transport, LINK, &options, device.channel_device()).unwrap()
}

/// Rows of message `number` and their values.
fn message(number: usize) -> Vec<f32> {
    let rows = number % (LINK.inbound.slot_rows + 1);
    let values = 0..rows * LINK.inbound.row_len;
    values.map(|i| (number * 1000 + i) as f32).collect()
}

/// Sends all messages from a device's buffer, from other places of it each time.
fn send_all(device: &dyn Device, ends: &mut Ends) {
    let mut buffer = device.zeros(2 * SLOT_LEN).unwrap();
    for number in 0..MESSAGES {
        let values = message(number);
        let at = number * 37 % SLOT_LEN;
        device.write(&mut buffer, at, &values);
        let span = buffer.span(at..at + values.len());
        let tag = Tag([number as u64, 0, 0, 0]);
        ends.sender.send_from(tag, &span, WATCHDOG).unwrap();
    }
}

/// Receives all messages into a device's buffer.
fn receive_all(device: &dyn Device, ends: &mut Ends) {
    let mut buffer = device.zeros(2 * SLOT_LEN).unwrap();
    for number in 0..MESSAGES {
        let at = number * 41 % SLOT_LEN;
        let mut room = buffer.span_mut(at..at + SLOT_LEN);
        let received = ends.receiver.receive_into(&mut room, WATCHDOG).unwrap();
        let expected = message(number);
        let tag = Tag([number as u64, 0, 0, 0]);
        assert_eq!(received, Some((tag, expected.len() * 4)));
        let values = buffer.span(at..at + expected.len()).to_vec();
        assert!(values == expected, "message {number}");
    }
}

/// In the peer: `write DEVICE DESCRIPTOR`: sends all, and ends when the other side is content.
fn write(task: &[String]) {
    let device = device(task[0].parse().unwrap());
    let mut ends = attach(
        &words::read(&task[1..]),
        LINK,
        WATCHDOG,
        device.channel_device(),
    )
    .unwrap();
    send_all(&*device, &mut ends);
    let mut room = [0; 32];
    let (tag, bytes) = ends.receiver.receive(&mut room, WATCHDOG).unwrap().unwrap();
    assert_eq!((tag, &room[..bytes]), (Tag([7; 4]), &[9; 16][..]));
    drop(ends);
    peer::listen();
}

/// In the peer: `read DEVICE TRANSPORT`: offers, receives all, and says that it did.
fn read(task: &[String]) {
    let device = device(task[0].parse().unwrap());
    let ours = available(device.channel_device().and_then(ChannelDevice::transport));
    let named = |transport: &&Transport| transport.to_string() == task[1];
    let offer = offered(*ours.iter().find(named).unwrap(), &*device);
    peer::say(&words::write(offer.descriptor()));
    let mut ends = offer.accept(WATCHDOG).unwrap();
    receive_all(&*device, &mut ends);
    ends.sender.send(Tag([7; 4]), &[9; 16], WATCHDOG).unwrap();
    peer::say("all");
    peer::listen();
}

/// In the peer: `hold DEVICE DESCRIPTOR`: attaches, sends one message, and closes when told to.
fn hold(task: &[String]) {
    let device = device(task[0].parse().unwrap());
    let mut ends = attach(
        &words::read(&task[1..]),
        LINK,
        WATCHDOG,
        device.channel_device(),
    )
    .unwrap();
    send_one(&*device, &mut ends, WATCHDOG).unwrap();
    peer::say("attached");
    peer::listen();
    drop(ends);
    peer::say("closed");
    peer::listen();
}

/// In the peer: `offer DEVICE`: makes an offer that nobody takes.
fn only_offer(task: &[String]) {
    let device = device(task[0].parse().unwrap());
    let offer = offered(memory_transport(), &*device);
    peer::say(&words::write(offer.descriptor()));
    peer::listen();
}

fn send_one(device: &dyn Device, ends: &mut Ends, patience: Duration) -> Result<(), ChannelError> {
    let mut buffer = device.zeros(SLOT_LEN).unwrap();
    device.write(&mut buffer, 0, &message(5));
    ends.sender
        .send_from(Tag([5; 4]), &buffer.span(0..SLOT_LEN), patience)
}

fn receive_one(device: &dyn Device, ends: &mut Ends) -> Result<(), ChannelError> {
    let mut buffer: Buffer = device.zeros(SLOT_LEN).unwrap();
    let received = ends
        .receiver
        .receive_into(&mut buffer.span_mut(0..SLOT_LEN), WATCHDOG)?;
    assert_eq!(received, Some((Tag([5; 4]), SLOT_LEN * 4)));
    assert_eq!(buffer.span(0..SLOT_LEN).to_vec(), message(5));
    Ok(())
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WATCHDOG, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pieces of emulated device memory of several processes that this one has mapped.
fn shared_maps() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_ours = |line: &&str| line.contains("/dev/shm/#") || line.contains("/dev/shm/.tmp");
    maps.lines().filter(is_ours).count()
}

/// All messages, from a writer on one device to a reader on another, with the reader in this process and then in the other.
fn check_messages(transport: Transport, reader: DeviceName, writer: DeviceName) {
    let ours = device(reader);
    let offer = offered(transport, &*ours);
    let descriptor = words::write(offer.descriptor());
    let theirs = Peer::start(&format!("write {writer} {descriptor}"));
    let mut ends = offer.accept(WATCHDOG).unwrap();
    receive_all(&*ours, &mut ends);
    ends.sender.send(Tag([7; 4]), &[9; 16], WATCHDOG).unwrap();
    theirs.finish();

    let ours = device(writer);
    let mut theirs = Peer::start(&format!("read {reader} {transport}"));
    let heard: Vec<String> = theirs.hear().split(' ').map(str::to_owned).collect();
    let descriptor = words::read(&heard);
    assert_eq!(descriptor.transport(), transport);
    let mut ends = attach(&descriptor, LINK, WATCHDOG, ours.channel_device()).unwrap();
    send_all(&*ours, &mut ends);
    assert_eq!(theirs.hear(), "all");
    theirs.finish();
}

// One test, as they count what the process has mapped and would count each other's.
#[test]
fn device_memory_is_exchanged_and_given_back() {
    messages_go_from_device_to_device();
    a_writer_that_dies_is_noticed_and_the_memory_goes();
    a_reader_that_dies_is_noticed_and_the_memory_goes();
    a_reader_keeps_its_memory_until_the_writer_has_closed_it();
    hostile_descriptors_are_refused_by_name();
}

fn messages_go_from_device_to_device() {
    check_messages(memory_transport(), reader_device(), writer_device());
    until("giving all memory back", || shared_maps() == 0);
}

fn a_writer_that_dies_is_noticed_and_the_memory_goes() {
    let ours = device(reader_device());
    let offer = offered(memory_transport(), &*ours);
    let descriptor = words::write(offer.descriptor());
    let mut theirs = Peer::start(&format!("hold {} {descriptor}", writer_device()));
    let mut ends = offer.accept(WATCHDOG).unwrap();
    assert_eq!(theirs.hear(), "attached");
    theirs.kill();
    // What it had sent is still received.
    receive_one(&*ours, &mut ends).unwrap();
    let error = receive_one(&*ours, &mut ends).unwrap_err();
    assert!(matches!(error, ChannelError::PeerGone { .. }), "{error}");
    drop(ends);
    until("giving the memory back", || shared_maps() == 0);
}

fn a_reader_that_dies_is_noticed_and_the_memory_goes() {
    let ours = device(writer_device());
    let mut theirs = Peer::start(&format!("read {} {}", reader_device(), memory_transport()));
    let heard: Vec<String> = theirs.hear().split(' ').map(str::to_owned).collect();
    let descriptor = words::read(&heard);
    let mut ends = attach(&descriptor, LINK, WATCHDOG, ours.channel_device()).unwrap();
    theirs.kill();
    // Its memory is still there for those who have it, and harms nobody.
    let mut result = Ok(());
    until("noticing", || {
        result = send_one(&*ours, &mut ends, Duration::ZERO);
        matches!(result, Err(ChannelError::PeerGone { .. }))
    });
    drop(ends);
    until("closing the memory", || shared_maps() == 0);
    // The next reader is another: what it offers has another generation, and the old offer leads nowhere.
    let error = attach(&descriptor, LINK, WATCHDOG, ours.channel_device()).unwrap_err();
    assert!(matches!(error, ChannelError::Io { .. }), "{error}");
}

fn a_reader_keeps_its_memory_until_the_writer_has_closed_it() {
    let ours = device(reader_device());
    let offer = offered(memory_transport(), &*ours);
    let descriptor = words::write(offer.descriptor());
    let mut theirs = Peer::start(&format!("hold {} {descriptor}", writer_device()));
    let ends = offer.accept(WATCHDOG).unwrap();
    assert_eq!(theirs.hear(), "attached");
    drop(ends);
    // Longer than a beat of the thread that watches.
    std::thread::sleep(Duration::from_millis(60));
    if memory_transport() == Transport::EmulatedIpc {
        assert!(shared_maps() > 0, "the writer may still write");
    }
    theirs.tell("close");
    assert_eq!(theirs.hear(), "closed");
    until("giving the memory back", || shared_maps() == 0);
    theirs.finish();
}

fn hostile_descriptors_are_refused_by_name() {
    let ours = device(writer_device());
    let mut theirs = Peer::start(&format!("offer {}", reader_device()));
    let heard: Vec<String> = theirs.hear().split(' ').map(str::to_owned).collect();
    let offered = words::read(&heard);
    let try_with = |change: &dyn Fn(&mut Descriptor), words: &str| {
        let mut descriptor = offered.clone();
        change(&mut descriptor);
        let device = ours.channel_device();
        let error = attach(&descriptor, LINK, WATCHDOG, device).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    let try_memory = |change: fn(&mut MemoryHandle), words: &str| {
        let of_memory = |descriptor: &mut Descriptor| {
            if let Descriptor::Device { memory, .. } = descriptor {
                change(memory);
            }
        };
        try_with(&of_memory, words);
    };
    try_memory(|memory| memory.bytes -= 256, "bytes of device memory");
    try_memory(|memory| memory.bytes = u64::MAX, "bytes of device memory");
    try_memory(|memory| memory.handle.truncate(31), "31 bytes");
    try_memory(|memory| memory.handle.clear(), "0 bytes");
    let shm = |descriptor: &mut Descriptor| {
        if let Descriptor::Device { segments, .. } = descriptor {
            *descriptor = Descriptor::Shm(segments.clone());
        }
    };
    try_with(&shm, "place of payloads");
    let generation = |descriptor: &mut Descriptor| {
        if let Descriptor::Device { segments, .. } = descriptor {
            segments.generation ^= 1;
        }
    };
    try_with(&generation, "generation");
    let other = |descriptor: &mut Descriptor| {
        if let Descriptor::Device { transport, .. } = descriptor {
            *transport = match transport {
                Transport::HipIpc => Transport::CudaIpc,
                _ => Transport::HipIpc,
            };
        }
    };
    try_with(&other, "not available");
    if memory_transport() == Transport::EmulatedIpc {
        // Another file of the other process, and no file of nobody.
        try_memory(|memory| memory.handle[8..16].fill(0), "not available");
        try_memory(|memory| memory.handle[..8].fill(0xff), "not available");
    }
    // A device that shares no memory.
    let error = attach(&offered, LINK, WATCHDOG, None).unwrap_err();
    assert!(matches!(error, ChannelError::Unavailable { .. }), "{error}");
    // After all that the offer stands.
    drop(attach(&offered, LINK, WATCHDOG, ours.channel_device()).unwrap());
    theirs.finish();
    until("closing the memory", || shared_maps() == 0);
}

/// Between a GPU and a CPU, the slots are shared memory that the GPU copies from and to by itself.
#[test]
fn messages_go_between_a_device_and_the_host() {
    for (reader, writer) in [
        (reader_device(), DeviceName::Cpu),
        (DeviceName::Cpu, writer_device()),
        (reader_device(), writer_device()),
    ] {
        check_messages(Transport::Shm, reader, writer);
    }
}

#[test]
fn messages_go_between_hosts() {
    check_messages(Transport::Tcp, reader_device(), writer_device());
}

#[test]
fn devices_of_a_kind_take_their_own_transport_and_others_shared_memory() {
    let ways =
        |device: &dyn Device| available(device.channel_device().and_then(ChannelDevice::transport));
    let (gpu, cpu) = (device(reader_device()), device(DeviceName::Cpu));
    assert_eq!(choose(&ways(&*gpu), &ways(&*gpu)), Some(memory_transport()));
    assert_eq!(choose(&ways(&*gpu), &ways(&*cpu)), Some(Transport::Shm));
}
