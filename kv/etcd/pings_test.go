package etcd_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// TestTooManyPings: as in etcd, a client may ping every 5 seconds while it has open calls;
// one that pings continuously is disconnected.
func TestTooManyPings(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.Endpoints()[0], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.WriteSettings()
	go func() {
		for range 10 {
			framer.WritePing(false, [8]byte{})
		}
	}()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("no GOAWAY received: %v", err)
		}
		if away, ok := frame.(*http2.GoAwayFrame); ok {
			if away.ErrCode != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("GOAWAY with %v", away.ErrCode)
			}
			return
		}
	}
}

// pinging is a connection on which pings can be sent between other messages: gRPC's own
// client sends none before 10 seconds of silence.
type pinging struct {
	net.Conn
	mu sync.Mutex
}

func (p *pinging) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Conn.Write(b)
}

// TestPingsOfQuietClients: the API server pings every 30 seconds over connections with only
// a watch. One ping every 5 seconds is permitted; the third ping too many would end the
// connection.
func TestPingsOfQuietClients(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s, nearly all of it waiting")
	}
	t.Parallel()
	_, c := serve(t, openAtoll(t), etcd.Options{})
	dialed := make(chan *pinging, 1)
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(c.Endpoints()[0], "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			p := &pinging{Conn: raw}
			dialed <- p // a second connection would block here: the first one has to last
			return p, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := pb.NewWatchClient(conn).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	const pings = 5
	ping := http2.NewFramer(<-dialed, nil)
	for n := range pings {
		if n > 0 {
			time.Sleep(5200 * time.Millisecond) // the permitted interval, and a little more
		}
		if err := ping.WritePing(false, [8]byte{byte(n)}); err != nil {
			t.Fatalf("ping %d: %v", n, err)
		}
	}
	if _, err := c.Put(t.Context(), "k", "1"); err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || len(r.Events) != 1 {
		t.Errorf("after %d pings the watch got %v, %v", pings, r, err)
	}
}
