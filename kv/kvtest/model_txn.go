package kvtest

import (
	"bytes"
	"cmp"
	"maps"

	"github.com/atoll-dev/atoll/kv"
)

// Txn answers like Keyspace.Txn.
func (m *Model) Txn(req kv.TxnRequest) (*kv.TxnResult, error) {
	if err := checkKeys(req); err != nil {
		return nil, err
	}
	if _, err := collect(req.Then); err != nil {
		return nil, err
	}
	if _, err := collect(req.Else); err != nil {
		return nil, err
	}
	before := m.states[m.Revision]
	if err := m.check(req, before); err != nil {
		return nil, err
	}
	t := m.begin()
	out := t.run(req, before)
	t.commit()
	setRevision(out, m.Revision)
	return out, nil
}

func setRevision(r *kv.TxnResult, rev kv.Revision) {
	r.Revision = rev
	for i := range r.Results {
		if r.Results[i].Txn != nil {
			setRevision(r.Results[i].Txn, rev)
		}
	}
}

// checkKeys refuses empty keys anywhere.
func checkKeys(req kv.TxnRequest) error {
	for _, c := range req.If {
		if len(c.Start) == 0 {
			return kv.ErrEmptyKey
		}
	}
	for _, op := range append(append([]kv.Op(nil), req.Then...), req.Else...) {
		var err error
		switch {
		case op.Range != nil && len(op.Range.Start) == 0,
			op.Put != nil && len(op.Put.Key) == 0,
			op.Delete != nil && len(op.Delete.Start) == 0:
			err = kv.ErrEmptyKey
		case op.Txn != nil:
			err = checkKeys(*op.Txn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// touched is the set of keys that operations put and delete, on any path.
type touched struct {
	puts map[string]bool
	dels []kv.Span
}

// collect refuses a list of operations in which a key is put twice, or put and deleted, on
// one path. The two branches of a nested transaction exclude each other.
func collect(ops []kv.Op) (touched, error) {
	all := touched{puts: map[string]bool{}}
	for _, op := range ops {
		one := touched{puts: map[string]bool{}}
		switch {
		case op.Put != nil:
			one.puts[string(op.Put.Key)] = true
		case op.Delete != nil && !op.Delete.ToEnd():
			one.dels = []kv.Span{op.Delete.Span}
		case op.Txn != nil:
			for _, branch := range [][]kv.Op{op.Txn.Then, op.Txn.Else} {
				b, err := collect(branch)
				if err != nil {
					return all, err
				}
				maps.Copy(one.puts, b.puts)
				one.dels = append(one.dels, b.dels...)
			}
		}
		if all.conflicts(one) || one.conflicts(all) {
			return all, kv.ErrDuplicateKey
		}
		maps.Copy(all.puts, one.puts)
		all.dels = append(all.dels, one.dels...)
	}
	return all, nil
}

// conflicts reports whether a puts a key that b puts or deletes.
func (a touched) conflicts(b touched) bool {
	for key := range a.puts {
		if b.puts[key] {
			return true
		}
		for _, span := range b.dels {
			if span.Contains([]byte(key)) {
				return true
			}
		}
	}
	return false
}

// check refuses a transaction whose path cannot be taken.
func (m *Model) check(req kv.TxnRequest, before map[string]kv.KeyValue) error {
	for _, op := range branch(req, before) {
		var err error
		switch {
		case op.Range != nil:
			err = m.readable(op.Range.Revision)
		case op.Put != nil:
			err = m.checkPut(op.Put, before)
		case op.Txn != nil:
			err = m.check(*op.Txn, before)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) checkPut(p *kv.PutOp, before map[string]kv.KeyValue) error {
	if p.IgnoreValue || p.IgnoreLease {
		if _, ok := before[string(p.Key)]; !ok {
			return kv.ErrKeyNotFound
		}
	}
	if p.Lease != 0 && !m.leases[p.Lease] {
		return kv.ErrLeaseNotFound
	}
	return nil
}

func branch(req kv.TxnRequest, before map[string]kv.KeyValue) []kv.Op {
	if holds(req.If, before) {
		return req.Then
	}
	return req.Else
}

func holds(compares []kv.Compare, state map[string]kv.KeyValue) bool {
	for _, c := range compares {
		found := within(state, c.Span)
		if len(found) == 0 {
			if c.Target == kv.CompareValue {
				return false
			}
			found = []kv.KeyValue{{}}
		}
		for _, k := range found {
			if !compare(c, k) {
				return false
			}
		}
	}
	return true
}

func compare(c kv.Compare, k kv.KeyValue) bool {
	var order int
	switch c.Target {
	case kv.CompareVersion:
		order = cmp.Compare(k.Version, c.Int)
	case kv.CompareCreate:
		order = cmp.Compare(k.CreateRevision, c.Int)
	case kv.CompareMod:
		order = cmp.Compare(k.ModRevision, c.Int)
	case kv.CompareLease:
		order = cmp.Compare(k.Lease, c.Int)
	case kv.CompareValue:
		order = bytes.Compare(k.Value, c.Value)
	}
	switch c.Op {
	case kv.Greater:
		return order > 0
	case kv.Less:
		return order < 0
	case kv.NotEqual:
		return order != 0
	case kv.Always:
		return true
	default:
		return order == 0
	}
}

// modelTxn is a transaction in progress.
type modelTxn struct {
	m      *Model
	state  map[string]kv.KeyValue
	events []kv.Event
}

func (m *Model) begin() *modelTxn {
	return &modelTxn{m: m, state: maps.Clone(m.states[m.Revision])}
}

func (t *modelTxn) commit() {
	if len(t.events) == 0 {
		return
	}
	t.m.Revision++
	t.m.states = append(t.m.states, t.state)
	t.m.log = append(t.m.log, t.events)
}

// revision returns the revision of the changes, or the current one before there are any.
func (t *modelTxn) revision() kv.Revision {
	if len(t.events) == 0 {
		return t.m.Revision
	}
	return t.m.Revision + 1
}

func (t *modelTxn) run(req kv.TxnRequest, before map[string]kv.KeyValue) *kv.TxnResult {
	out := &kv.TxnResult{Succeeded: holds(req.If, before)}
	for _, op := range branch(req, before) {
		var res kv.OpResult
		switch {
		case op.Range != nil:
			res.Range = t.m.read(*op.Range, t.state, t.revision())
		case op.Put != nil:
			res.Put = &kv.PutResult{}
			if prev := t.put(op.Put); op.Put.PrevKV {
				res.Put.Prev = prev
			}
		case op.Delete != nil:
			gone := t.delete(op.Delete.Span)
			res.Delete = &kv.DeleteResult{Deleted: int64(len(gone))}
			if op.Delete.PrevKV {
				res.Delete.Prev = gone
			}
		case op.Txn != nil:
			res.Txn = t.run(*op.Txn, before)
		}
		out.Results = append(out.Results, res)
	}
	return out
}

func (t *modelTxn) put(p *kv.PutOp) *kv.KeyValue {
	rev := t.m.Revision + 1
	next := kv.KeyValue{Key: p.Key, Value: p.Value, Lease: p.Lease, CreateRevision: rev, ModRevision: rev, Version: 1}
	var prev *kv.KeyValue
	if old, ok := t.state[string(p.Key)]; ok {
		prev = &old
		next.CreateRevision, next.Version = old.CreateRevision, old.Version+1
		if p.IgnoreValue {
			next.Value = old.Value
		}
		if p.IgnoreLease {
			next.Lease = old.Lease
		}
	}
	t.state[string(p.Key)] = next
	t.events = append(t.events, kv.Event{Type: kv.EventPut, KV: next, Prev: prev})
	return prev
}

func (t *modelTxn) delete(span kv.Span) []kv.KeyValue {
	gone := within(t.state, span)
	for _, old := range gone {
		delete(t.state, string(old.Key))
		t.events = append(t.events, kv.Event{
			Type: kv.EventDelete,
			KV:   kv.KeyValue{Key: old.Key, ModRevision: t.m.Revision + 1},
			Prev: &old,
		})
	}
	return gone
}
