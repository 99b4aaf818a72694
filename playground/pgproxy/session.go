package pgproxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgproto3"
)

// session is a connection of a client and the corresponding connection to the server.
type session struct {
	link           *Link
	ctx            context.Context
	cancel         context.CancelFunc
	client, server net.Conn
	up, down       *pipe

	// Used by the reader of the client's messages.
	upChance   *rand.Rand
	statements map[string]class // prepared, by name
	portals    map[string]class // bound, by name
	// rollBack means that a COMMIT was made to fail, so its transaction must end at the next Sync.
	rollBack bool

	// Used by the reader of the server's messages.
	downChance *rand.Rand
	// inTransaction is the state in the last ReadyForQuery.
	inTransaction atomic.Bool

	lost bool // data were dropped; guarded by the link's mutex

	replies replies
	// lastMessage is sent to the client after everything else.
	lastMessage atomic.Pointer[[]byte]
}

// maxMessage bounds a message; PostgreSQL's own bound is 1 GiB.
const maxMessage = 1 << 30

func (s *session) run(startup []byte) {
	s.up = newPipe(s, s.server, ToServer)
	s.down = newPipe(s, s.client, ToClient)
	// Authentication ends with a ReadyForQuery, like a query.
	s.replies.expect(reply{kind: querying})
	s.up.add(startup)
	s.up.flush()
	stop := context.AfterFunc(s.ctx, func() {
		s.client.Close()
		s.server.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(s.up.run)
	wg.Go(s.down.run)
	wg.Go(func() {
		defer s.up.end()
		s.read(s.client, s.up, s.fromClient)
	})
	wg.Go(func() {
		defer s.down.end()
		s.read(s.server, s.down, s.fromServer)
		if lastMessage := s.lastMessage.Load(); lastMessage != nil {
			s.down.add(*lastMessage)
		}
	})
	wg.Wait()
}

// cut ends the session at once, on both sides.
func (s *session) cut() {
	s.reset()
	s.cancel()
}

// reset closes the client's connection with a RST instead of a FIN.
func (s *session) reset() {
	if tcp, ok := s.client.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = s.client.Close()
}

// read reads messages until the connection ends or handle returns false.
func (s *session) read(from net.Conn, into *pipe, handle func(kind byte, raw []byte) bool) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		if in.Buffered() == 0 {
			into.flush()
		}
		raw, err := readMessage(in)
		if err != nil || !handle(raw[0], raw) {
			return
		}
	}
}

// readMessage reads one message with its header: a type byte, and the length of the rest.
func readMessage(in *bufio.Reader) ([]byte, error) {
	header, err := in.Peek(5)
	if err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(header[1:]))
	if length < 4 || length > maxMessage {
		return nil, fmt.Errorf("message %q of impossible length %d", header[0], length)
	}
	raw := make([]byte, 1+length)
	_, err = io.ReadFull(in, raw)
	return raw, err
}

// happens draws at random with the given chance.
func happens(r *rand.Rand, chance float64) bool { return chance > 0 && r.Float64() < chance }

func (s *session) count(kind string) { s.link.proxy.counts.add(kind) }

// fromClient handles one message of the client, and reports whether the connection continues.
func (s *session) fromClient(kind byte, raw []byte) bool {
	f := s.link.current()
	if happens(s.upChance, f.Cut) {
		s.count(Cuts)
		s.cut()
		return false
	}
	switch kind {
	case 'Q':
		return s.query(f, raw)
	case 'P':
		return s.parse(f, raw)
	case 'B':
		var m pgproto3.Bind
		if m.Decode(raw[5:]) == nil {
			s.portals[m.DestinationPortal] = s.statements[m.PreparedStatement]
		}
		s.forward(raw, reply{kind: binding})
	case 'E':
		var m pgproto3.Execute
		if m.Decode(raw[5:]) != nil {
			s.forward(raw, reply{kind: executing})
			return true
		}
		return s.execute(f, s.portals[m.Portal], raw)
	case 'D':
		s.forward(raw, reply{kind: describing})
	case 'C':
		s.forward(raw, reply{kind: closing})
	case 'F':
		s.forward(raw, reply{kind: querying})
	case 'S':
		s.forward(raw, reply{kind: syncing, hideReady: s.rollBack})
		if s.rollBack {
			s.rollBack = false
			s.sendRollback()
		}
	default: // passwords, COPY data, Flush, Terminate: no answer of their own
		s.up.add(raw)
	}
	return true
}

func (s *session) forward(raw []byte, r reply) {
	s.replies.expect(r)
	s.up.add(raw)
}

// query handles a simple query, which may contain several statements.
func (s *session) query(f Faults, raw []byte) bool {
	var m pgproto3.Query
	if m.Decode(raw[5:]) != nil {
		s.forward(raw, reply{kind: querying})
		return true
	}
	sql, refused := s.emulate(f, m.String)
	if refused != nil {
		s.forward(raiseQuery(failure{refused.code, refused.message()}), reply{kind: querying})
		return true
	}
	if sql != m.String {
		raw = encode(&pgproto3.Query{String: sql})
	}
	c := classify(m.String)
	if refused := c.features & f.Refuse; refused != 0 {
		s.count(FeaturesRefused)
		s.forward(raiseQuery(failure{featureNotSupported, missing(refused)}), reply{kind: querying})
		return true
	}
	verdict, failure := s.judge(f, c)
	switch verdict {
	case fails:
		s.forward(raiseQuery(failure), reply{kind: querying, hideReady: c.commit})
		if c.commit {
			s.sendRollback()
		}
	case misreports:
		s.forward(raw, reply{kind: querying, hide: true, hideReady: true})
		s.forward(raiseQuery(failure), reply{kind: querying})
	case shutsDown:
		return s.shutDown(failure.code)
	case abandons:
		s.abandon(raw, reply{kind: querying})
		return false
	default:
		s.forward(raw, reply{kind: querying, lose: verdict == loses})
	}
	return true
}

// parse handles the preparation of a statement. Missing features are refused here, as by a parser that
// does not know them.
func (s *session) parse(f Faults, raw []byte) bool {
	var m pgproto3.Parse
	if m.Decode(raw[5:]) != nil {
		s.forward(raw, reply{kind: parsing})
		return true
	}
	sql, refused := s.emulate(f, m.Query)
	if e := s.link.proxy.emulated; e != nil && refused == nil {
		if refused = e.tooMany(m.Query, len(m.ParameterOIDs)); refused != nil {
			s.count(FeaturesRefused)
		}
	}
	if refused != nil {
		s.raise(failure{refused.code, refused.message()})
		return true
	}
	if lockless, locks := withoutLock(sql); locks && happens(s.upChance, f.LoseLock) {
		s.count(LocksLost)
		sql = lockless
	}
	if sql != m.Query {
		raw = encode(&pgproto3.Parse{Name: m.Name, Query: sql, ParameterOIDs: m.ParameterOIDs})
	}
	c := classify(m.Query)
	if refused := c.features & f.Refuse; refused != 0 {
		s.count(FeaturesRefused)
		s.raise(failure{featureNotSupported, missing(refused)})
		return true
	}
	s.statements[m.Name] = c
	s.forward(raw, reply{kind: parsing})
	return true
}

// emulate returns the SQL for the server, or why it is refused.
func (s *session) emulate(f Faults, sql string) (string, *refusal) {
	cache := f.SequenceCache
	if e := s.link.proxy.emulated; e != nil {
		var refused *refusal
		if sql, refused = e.rewrite(sql, s.inTransaction.Load()); refused != nil {
			s.count(FeaturesRefused)
			return "", refused
		}
		if cache == 0 {
			cache = e.sequenceCache
		}
	}
	changed, did := cacheSequences(sql, cache)
	if did {
		s.count(SequencesCached)
	}
	return changed, nil
}

// execute handles the execution of a prepared statement.
func (s *session) execute(f Faults, c class, raw []byte) bool {
	verdict, failure := s.judge(f, c)
	switch verdict {
	case fails:
		s.raise(failure)
		s.rollBack = s.rollBack || c.commit
	case misreports:
		s.forward(raw, reply{kind: executing, hide: true})
		s.raise(failure)
	case shutsDown:
		return s.shutDown(failure.code)
	case abandons:
		s.abandon(raw, reply{kind: executing})
		return false
	default:
		s.forward(raw, reply{kind: executing, lose: verdict == loses})
	}
	return true
}

// fromServer handles one message of the server.
func (s *session) fromServer(kind byte, raw []byte) bool {
	if happens(s.downChance, s.link.current().Cut) {
		s.count(Cuts)
		s.cut()
		return false
	}
	if kind == 'Z' && len(raw) > 5 {
		s.inTransaction.Store(raw[5] != 'I')
	}
	pass, lost := s.replies.heard(kind)
	if lost {
		s.count(CommitRepliesLost)
		s.cut()
		return false
	}
	if pass {
		s.down.add(raw)
	}
	return true
}
