package etcd_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
)

// alarming is a keyspace whose alarm can be made to fail, or to be read slowly.
type alarming struct {
	kv.Keyspace
	failing atomic.Bool
	slow    atomic.Pointer[slowRead] // of the next reading
}

type slowRead struct{ begun, goOn chan struct{} }

func openAlarming(t *testing.T) *alarming { return &alarming{Keyspace: openAtoll(t)} }

func (a *alarming) NoSpaceAlarm(ctx context.Context) (bool, error) {
	if a.failing.Load() {
		return false, kv.ErrUnavailable
	}
	raised, err := a.Keyspace.(kv.Alarms).NoSpaceAlarm(ctx)
	if s := a.slow.Swap(nil); s != nil {
		close(s.begun)
		<-s.goOn
	}
	return raised, err
}

func (a *alarming) SetNoSpaceAlarm(ctx context.Context, raised bool) error {
	if a.failing.Load() {
		return kv.ErrUnavailable
	}
	return a.Keyspace.(kv.Alarms).SetNoSpaceAlarm(ctx, raised)
}

// TestUnknownAlarm checks that a put is refused while the alarm cannot be read, and reads are
// not.
func TestUnknownAlarm(t *testing.T) {
	t.Parallel()
	ks := openAlarming(t)
	ks.failing.Store(true)
	_, c := serve(t, ks, etcd.Options{QuotaBytes: 1 << 30})
	raw := pb.NewKVClient(c.ActiveConnection())
	if _, err := raw.Put(t.Context(), &pb.PutRequest{Key: []byte("a")}); status.Code(err) != codes.Unavailable {
		t.Errorf("put: %v", err)
	}
	if _, err := c.Get(t.Context(), "a"); err != nil {
		t.Errorf("get: %v", err)
	}
	ks.failing.Store(false)
	if _, err := c.Put(t.Context(), "a", ""); err != nil {
		t.Errorf("put after the alarm can be read again: %v", err)
	}
}

// TestLateReadingOfAlarm raises the alarm while a put waits for an earlier reading of it, in
// which it was not raised.
func TestLateReadingOfAlarm(t *testing.T) {
	t.Parallel()
	ks := openAlarming(t)
	read := &slowRead{make(chan struct{}), make(chan struct{})}
	ks.slow.Store(read)
	_, c := serve(t, ks, etcd.Options{})
	put := make(chan error, 1)
	go func() {
		_, err := c.Put(t.Context(), "a", "")
		put <- err
	}()
	<-read.begun
	raise := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE}
	if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), raise); err != nil {
		t.Fatal(err)
	}
	close(read.goOn)
	if err := <-put; !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("the put that waited: %v", err)
	}
	if _, err := c.Put(t.Context(), "a", ""); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("the next put: %v", err)
	}
}
