package etcd

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/singleflight"

	"github.com/atoll-dev/atoll/kv"
)

// etcd's estimates of the space for a key and a lease, in addition to their contents.
const (
	keyCost   = 256
	leaseCost = 64
)

const (
	// refreshAlarmAfter is the age at which a write reads alarm and size again, and does not
	// wait for them.
	refreshAlarmAfter = time.Second
	// maxAlarmAge is the age at which it waits. So a server that was idle does not write once
	// more after another server has raised the alarm.
	maxAlarmAge = 3 * time.Second
	// readAlarmTimeout bounds how long writes wait for a slow database.
	readAlarmTimeout = 10 * time.Second
)

// quotaGuard refuses writes while the keyspace has the NOSPACE alarm, and raises the alarm
// when the database exceeds its quota. Between two readings of the size it counts the
// writes that it admits, so that a burst cannot pass the quota by much.
type quotaGuard struct {
	ks       kv.Keyspace
	alarms   kv.Alarms
	quota    int64 // 0: none
	onChange func(raised bool, inUse, quota int64)
	reading  singleflight.Group

	mu      sync.Mutex
	read    time.Time // when raised and inUse were read
	raised  bool
	inUse   int64
	written int64 // estimate of the bytes that were written since
	changes int   // of the alarm by this server
}

// newQuotaGuard returns nil for a keyspace that keeps no alarms.
func newQuotaGuard(ks kv.Keyspace, opts Options) *quotaGuard {
	alarms, ok := ks.(kv.Alarms)
	if !ok {
		return nil
	}
	g := &quotaGuard{ks: ks, alarms: alarms, quota: opts.QuotaBytes, onChange: opts.OnAlarm}
	if g.onChange == nil {
		g.onChange = func(bool, int64, int64) {}
	}
	return g
}

// exceeds reports whether a write of that cost would use more than the quota. Like etcd, it
// leaves the last byte free.
func exceeds(quota, inUse, cost int64) bool { return quota > 0 && inUse+cost >= quota }

// admit returns etcd's error if a write has to wait until an operator disarms the alarm.
func (g *quotaGuard) admit(ctx context.Context, cost int64) error {
	if g == nil || cost == 0 {
		return nil
	}
	for waited := false; ; waited = true {
		g.mu.Lock()
		age := time.Since(g.read)
		full := exceeds(g.quota, g.inUse+g.written, cost)
		admitted := !g.raised && !full && (waited || age < maxAlarmAge)
		refused := g.raised && (waited || age < refreshAlarmAfter)
		if admitted {
			g.written += cost
		}
		g.mu.Unlock()
		switch {
		case refused:
			return rpctypes.ErrGRPCNoSpace
		case admitted && age < refreshAlarmAfter || admitted && waited:
			return nil
		case admitted:
			g.reading.DoChan("", g.refresh)
			return nil
		case waited && full:
			return g.raise(ctx)
		}
		select {
		case r := <-g.reading.DoChan("", g.refresh):
			if r.Err != nil {
				return toStatus(r.Err)
			}
		case <-ctx.Done():
			return toStatus(ctx.Err())
		}
	}
}

// refresh reads the alarm, and with a quota also the size.
func (g *quotaGuard) refresh() (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readAlarmTimeout)
	defer cancel()
	g.mu.Lock()
	before := g.written // writes admitted later may not be part of the size yet
	changes := g.changes
	g.mu.Unlock()
	raised, err := g.alarms.NoSpaceAlarm(ctx)
	if err != nil {
		return nil, err
	}
	var inUse int64
	if g.quota > 0 {
		st, err := g.ks.Status(ctx)
		if err != nil {
			return nil, err
		}
		inUse = st.SizeInUse
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changes != changes {
		return nil, nil // the alarm may have been read before it was changed
	}
	g.read, g.raised, g.inUse = time.Now(), raised, inUse
	g.written -= before
	return nil, nil
}

// raise raises the alarm because of a write that does not fit, and refuses the write. The
// writes that find this at the same moment raise it together.
func (g *quotaGuard) raise(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	_, err, _ := g.reading.Do("raise", func() (any, error) {
		g.mu.Lock()
		raised := g.raised
		g.mu.Unlock()
		if raised {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(ctx, readAlarmTimeout)
		defer cancel()
		return nil, g.set(ctx, true)
	})
	if err != nil {
		return toStatus(err)
	}
	return rpctypes.ErrGRPCNoSpace
}

// set raises or disarms the alarm.
func (g *quotaGuard) set(ctx context.Context, raised bool) error {
	if err := g.alarms.SetNoSpaceAlarm(ctx, raised); err != nil {
		return err
	}
	g.mu.Lock()
	g.changes++
	g.raised, g.read = raised, time.Time{} // the next write reads again
	inUse := g.inUse
	g.mu.Unlock()
	g.onChange(raised, inUse, g.quota)
	return nil
}

// listAlarms returns the alarms of the keyspace, as read now.
func (f *adapter) listAlarms(ctx context.Context) ([]*pb.AlarmMember, error) {
	if f.quota == nil {
		return nil, nil
	}
	raised, err := f.quota.alarms.NoSpaceAlarm(ctx)
	if err != nil || !raised {
		return nil, err
	}
	return []*pb.AlarmMember{{MemberID: f.memberID, Alarm: pb.AlarmType_NOSPACE}}, nil
}

// Alarm lists, raises and disarms the only alarm that a keyspace has. All servers of the
// keyspace have it together, so the member in a request does not matter.
func (f *adapter) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	listed, err := f.listAlarms(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	concerned := r.Alarm == pb.AlarmType_NOSPACE
	switch r.Action {
	case pb.AlarmRequest_GET:
		if !concerned && r.Alarm != pb.AlarmType_NONE {
			listed = nil
		}
	case pb.AlarmRequest_ACTIVATE:
		if !concerned || f.quota == nil {
			return nil, refuse("raising the alarm "+r.Alarm.String(), "the only alarm is NOSPACE")
		}
		if err := f.quota.set(ctx, true); err != nil {
			return nil, toStatus(err)
		}
		listed = []*pb.AlarmMember{{MemberID: f.memberID, Alarm: pb.AlarmType_NOSPACE}}
	case pb.AlarmRequest_DEACTIVATE:
		if !concerned || len(listed) == 0 {
			listed = nil
			break
		}
		if err := f.quota.set(ctx, false); err != nil {
			return nil, toStatus(err)
		}
	}
	rev, err := f.headRevision(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &pb.AlarmResponse{Header: f.header(rev), Alarms: listed}, nil
}

func putCost(r *pb.PutRequest) int64 { return keyCost + int64(len(r.GetKey())+len(r.GetValue())) }

// txnCost is the cost of the more expensive branch, 0 if neither puts anything. Unlike
// etcd's, it includes nested transactions, which could otherwise pass any quota.
func txnCost(r *pb.TxnRequest) int64 {
	var branches [2]int64
	for i, branch := range [2][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range branch {
			if put := op.GetRequestPut(); put != nil {
				branches[i] += putCost(put)
			} else if nested := op.GetRequestTxn(); nested != nil {
				branches[i] += txnCost(nested)
			}
		}
	}
	return max(branches[0], branches[1])
}
