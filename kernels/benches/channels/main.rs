//! Two processes, a target's features on their way to a draft: how long a message takes, and how much goes through, over
//! each transport that this machine has.
//!
//! `cargo bench -p kernels --bench channels` takes about a minute, `-- --quick` some seconds. A message is rows of five
//! layers of 5120 values. Its time is from the call that sends it, from a buffer of the target's device, until the target
//! knows that it lies in a buffer of the draft's. The other process is this program, started again.

#[path = "../../tests/exchange/words.rs"]
mod words;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{CudaReport, Device, DeviceName, open_device};
use tensor_channel::{
    ChannelError, ChannelSpec, ElementType, Ends, LinkSpec, OfferOptions, Tag, Transport, attach,
    offer,
};

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(30);
const ROW_LEN: usize = 5 * 5120;
const ROWS: [usize; 3] = [1, 16, 64];
const SLOTS: usize = 4;

/// A line of the table: features go from the first device to the second.
struct Way {
    name: &'static str,
    transport: Transport,
    target: DeviceName,
    draft: DeviceName,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, transport, draft, rows, ..] = arguments.as_slice()
        && first == "draft"
    {
        return draft_process(transport, draft, rows.parse().expect("a number"));
    }
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let messages = if is_quick { 50 } else { 1000 };
    let cuda = CudaReport::new();
    let ways = ways(&cuda);
    println!(
        "messages: {messages} of each size after {} of warm-up",
        messages / 10
    );
    println!();
    println!("| way | from | to | rows | p50 us | p99 us | GB/s |");
    println!("| --- | --- | --- | ---: | ---: | ---: | ---: |");
    for way in &ways {
        for rows in ROWS {
            way.measure(rows, messages);
        }
    }
}

/// What this machine can do; says what it cannot.
fn ways(cuda: &CudaReport) -> Vec<Way> {
    for (ordinal, device) in cuda.devices.iter().enumerate() {
        match device {
            Ok(device) => println!(
                "cuda:{ordinal}: {}, reaches {:?}",
                device.facts.name, device.peers
            ),
            Err(error) => println!("cuda:{ordinal}: {error}"),
        }
    }
    let way = |name, transport, target, draft| Way {
        name,
        transport,
        target,
        draft,
    };
    let (cpu, first, second) = (DeviceName::Cpu, DeviceName::Cuda(0), DeviceName::Cuda(1));
    let mut ways = Vec::new();
    let usable = cuda
        .devices
        .iter()
        .take_while(|device| device.is_ok())
        .count();
    if usable > 0 {
        ways.push(way("cuda-ipc, same card", Transport::CudaIpc, first, first));
    } else {
        let why = cuda
            .driver
            .as_ref()
            .err()
            .map_or_else(|| "no device".to_owned(), ToString::to_string);
        println!("skipped: cuda-ipc, same card; shm, registered: {why}");
    }
    if usable > 1 {
        ways.push(way(
            "cuda-ipc, other card",
            Transport::CudaIpc,
            first,
            second,
        ));
    } else {
        println!("skipped: cuda-ipc, other card: there are not two cards");
    }
    if usable > 0 {
        ways.push(way("shm, registered", Transport::Shm, first, cpu));
        ways.push(way("shm, registered", Transport::Shm, cpu, first));
        ways.push(way("shm, registered twice", Transport::Shm, first, first));
    }
    ways.push(way("shm, plain", Transport::Shm, cpu, cpu));
    ways.push(way("tcp", Transport::Tcp, cpu, cpu));
    if usable > 0 {
        ways.push(way("tcp", Transport::Tcp, first, first));
    }
    ways
}

fn link(rows: usize) -> LinkSpec {
    LinkSpec {
        inbound: ChannelSpec {
            element: ElementType::F32,
            row_len: ROW_LEN,
            slot_rows: rows,
            slots: SLOTS,
        },
        outbound: ChannelSpec {
            element: ElementType::U8,
            row_len: 1,
            slot_rows: 1,
            slots: SLOTS,
        },
    }
}

/// Asks the draft to answer a message.
const ANSWER: Tag = Tag([1, 0, 0, 0]);

impl Way {
    /// Prints the lines of messages of so many rows.
    fn measure(&self, rows: usize, messages: usize) {
        let device = device(self.target);
        let (mut child, descriptor) = self.start_draft(rows);
        let link = link(rows);
        let attached = attach(&descriptor, link, PATIENCE, device.channel_device());
        let mut ends = match attached {
            Ok(ends) => ends,
            Err(error) => {
                println!("skipped: {}: {error}", self.name);
                return drop(child.kill());
            }
        };
        let len = rows * ROW_LEN;
        let buffer = device.zeros(len).expect("memory for a message");
        let send = |ends: &mut Ends, tag| {
            let sent = ends.sender.send_from(tag, &buffer.span(0..len), PATIENCE);
            sent.expect("the draft reads");
        };
        let mut times: Vec<Duration> = (0..messages + messages / 10)
            .map(|_| {
                let start = Instant::now();
                send(&mut ends, ANSWER);
                answer(&mut ends);
                start.elapsed()
            })
            .skip(messages / 10)
            .collect();
        let start = Instant::now();
        for _ in 1..messages {
            send(&mut ends, Tag::default());
        }
        send(&mut ends, ANSWER);
        answer(&mut ends);
        let rate = (messages * len * 4) as f64 / start.elapsed().as_secs_f64() / 1e9;
        times.sort_unstable();
        let micros = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
        println!(
            "| {} | {} | {} | {rows} | {:.1} | {:.1} | {rate:.2} |",
            self.name,
            self.target,
            self.draft,
            micros(50),
            micros(99)
        );
        drop(ends);
        let status = child.wait().expect("the draft ends");
        assert!(status.success(), "the draft failed: {status}");
    }

    /// The other process, and how it is reached.
    fn start_draft(&self, rows: usize) -> (Child, tensor_channel::Descriptor) {
        let program = std::env::current_exe().expect("a program has a path");
        let (transport, draft) = (self.transport.to_string(), self.draft.to_string());
        let mut child = Command::new(program)
            .args(["draft", &transport, &draft, &rows.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts again");
        let mut line = String::new();
        let said = child.stdout.take().expect("a pipe");
        BufReader::new(said)
            .read_line(&mut line)
            .expect("a descriptor");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (child, words::read(&words))
    }
}

fn answer(ends: &mut Ends) {
    let answered = ends.receiver.receive(&mut [0], PATIENCE);
    let answered = answered.expect("the draft answers");
    assert!(answered.is_some(), "the draft answers in time");
}

fn device(name: DeviceName) -> Arc<dyn Device> {
    open_device(name, 1).expect("the device was there before")
}

/// The other process: offers a link, and receives into its device until the target is gone.
fn draft_process(transport: &str, name: &str, rows: usize) {
    let device = device(name.parse().expect("a device"));
    let all = [Transport::CudaIpc, Transport::Shm, Transport::Tcp];
    let named = |way: &Transport| way.to_string() == transport;
    let transport = all.into_iter().find(named).expect("a transport");
    let options = OfferOptions {
        instance: format!("bench-{}", std::process::id()),
        tcp_bind: "127.0.0.1:0".to_owned(),
        tcp_host: None,
    };
    let offer = offer(transport, link(rows), &options, device.channel_device());
    let offer = offer.expect("the machine has the transport");
    println!("{}", words::write(offer.descriptor()));
    let mut ends = offer.accept(PATIENCE).expect("the target attaches");
    let len = rows * ROW_LEN;
    let mut buffer = device.zeros(len).expect("memory for a message");
    loop {
        let mut room = buffer.span_mut(0..len);
        match ends.receiver.receive_into(&mut room, PATIENCE) {
            Ok(Some((ANSWER, _))) => {
                let sent = ends.sender.send(ANSWER, &[], PATIENCE);
                sent.expect("the target reads");
            }
            Ok(Some(_)) => {}
            Ok(None) => panic!("nothing came in time"),
            Err(ChannelError::PeerGone { .. }) => return,
            Err(other) => panic!("{other}"),
        }
    }
}
