package workspaces

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/atoll-dev/atoll/apiserver/overlay"
	"github.com/atoll-dev/atoll/kv"
)

// A copy of a workspace is filled in attempts. The attempt that runs is in a key (attemptKey), and each of its writes compares it. So when
// another server begins a new attempt, the former one can write nothing any more, and no attempt writes into a complete workspace. The
// last transaction completes it: it has the birth, the owner's role, and the attempt "complete".

// attemptKey has the attempt that fills the workspace, or complete. It sorts before all keys that a copy gets: see copied.
const attemptKey = "/atoll/attempt"

// complete is the value of attemptKey when the workspace may be served.
const complete = "complete"

// copied are the keys that a copy gets from its source.
var copied = kv.Span{Start: []byte(overlay.BirthKey), End: []byte{0}}

// ErrIncomplete is returned by Config.Open for a workspace that is not served yet, because it is being copied from another one.
var ErrIncomplete = errors.New("the workspace is being copied from another one")

// errReplaced ends an attempt.
var errReplaced = errors.New("another server copies the workspace, or has done it")

// CopyChange returns a key of the source as the copy has it, or keep false if the copy does not have it.
type CopyChange func(ctx context.Context, e kv.KeyValue) (changed kv.KeyValue, keep bool, err error)

// CopyTarget is the workspace that becomes a copy.
type CopyTarget struct {
	// Keyspace has nothing but what earlier attempts wrote.
	Keyspace kv.Keyspace
	UID      string
	// Owner is the user with the role cluster-admin; "" for none.
	Owner string
	// Fill makes the keys of a span equal to those of the source at one revision, after change. It deletes others.
	Fill func(ctx context.Context, into kv.Keyspace, span kv.Span, change CopyChange) error
	// BeforeEnd is called before the workspace is complete. Its error ends the attempt.
	BeforeEnd func(context.Context) error
}

// Copy makes a workspace a copy of another one: of its objects at one revision, except for Workspaces. It may be repeated after an error.
// Tokens in Secrets are replaced by tokens of the copy.
// Errors: those of Fill.
func (s *Server) Copy(ctx context.Context, to CopyTarget) error {
	chain, err := s.built()
	if err != nil {
		return err
	}
	change, err := chain.newCopyChange(s.users, to.UID)
	if err != nil {
		return err
	}
	attempt := uuid.NewString()
	if done, err := beginAttempt(ctx, to.Keyspace, attempt); done || err != nil {
		return err
	}
	target := attemptKeyspace{to.Keyspace, attempt}
	if err := to.Fill(ctx, target, copied, change.apply); err != nil {
		return err
	}
	end, err := chain.copyEnd(ctx, change.birth, to.Owner)
	if err != nil {
		return err
	}
	if err := to.BeforeEnd(ctx); err != nil {
		return err
	}
	done, err := target.Txn(exempted(ctx), kv.TxnRequest{Then: end})
	if err != nil {
		return err
	}
	_, err = to.Keyspace.Compact(ctx, done.Revision, false) // no client may read the incomplete states before it
	return err
}

// exempted returns a context without limits: they do not apply to what every workspace has.
func exempted(ctx context.Context) context.Context {
	ctx, exempt := kv.WithExemption(ctx)
	exempt(true)
	return ctx
}

// beginAttempt makes the attempt the one that may write, unless the workspace is complete.
func beginAttempt(ctx context.Context, keyspace kv.Keyspace, attempt string) (done bool, err error) {
	key := kv.Span{Start: []byte(attemptKey)}
	found, err := keyspace.Range(ctx, kv.RangeRequest{Span: key})
	if err != nil {
		return false, err
	}
	previous := kv.Revision(0)
	if len(found.KVs) > 0 {
		previous = found.KVs[0].ModRevision
		done = string(found.KVs[0].Value) == complete
	}
	if done {
		return true, nil
	}
	begun, err := keyspace.Txn(exempted(ctx), kv.TxnRequest{
		If:   []kv.Compare{{Span: key, Target: kv.CompareMod, Op: kv.Equal, Int: previous}},
		Then: []kv.Op{{Put: &kv.PutOp{Key: key.Start, Value: []byte(attempt)}}},
	})
	if err == nil && !begun.Succeeded {
		err = errReplaced
	}
	return false, err
}

// attemptKeyspace is a keyspace in which one attempt writes, as long as no other one has begun.
type attemptKeyspace struct {
	kv.Keyspace
	attempt string
}

// Txn implements kv.Keyspace.
// Errors: errReplaced.
func (a attemptKeyspace) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	req.If = append([]kv.Compare{{Span: kv.Span{Start: []byte(attemptKey)}, Target: kv.CompareValue, Op: kv.Equal, Value: []byte(a.attempt)}}, req.If...)
	result, err := a.Keyspace.Txn(ctx, req)
	if err == nil && !result.Succeeded {
		return nil, errReplaced
	}
	return result, err
}

// copyEnd returns the last writes of a copy. Its birth is that of the source, so that objects which every workspace begins with keep their
// UIDs. A source that an earlier version of Atoll created has none, and stores these objects.
func (c *chain) copyEnd(ctx context.Context, birth []byte, owner string) ([]kv.Op, error) {
	end := []kv.Op{{Put: &kv.PutOp{Key: []byte(attemptKey), Value: []byte(complete)}}}
	if birth != nil {
		end = append(end, kv.Op{Put: &kv.PutOp{Key: []byte(overlay.BirthKey), Value: birth}})
	}
	if owner == "" {
		return end, nil
	}
	binding, err := c.encoder.Put(ctx, overlay.OwnerBinding(owner))
	if err != nil {
		return nil, err
	}
	return append(end, kv.Op{Put: &kv.PutOp{Key: binding.KeyBytes(), Value: binding.ValueBytes()}}), nil
}

// CopyState is how far a keyspace is from being a workspace.
type CopyState int

const (
	// NotBegun keyspaces have nothing that decides it. If the workspace is to become a copy, it is not one yet.
	NotBegun CopyState = iota
	// Incomplete workspaces are being copied, or were until the server ended.
	Incomplete
	// Complete workspaces can be served.
	Complete
)

// StateOfCopy reads how far the keyspace of a table is, without an engine: a copy must be the only one that has an engine open.
func StateOfCopy(ctx context.Context, table kv.Table) (CopyState, error) {
	found, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(attemptKey), End: []byte(overlay.BirthKey + "\x00")}}, false)
	if err != nil {
		return NotBegun, fmt.Errorf("read whether the workspace is complete: %w", err)
	}
	for _, e := range found.KVs {
		switch key := string(e.Key); {
		case key == attemptKey && string(e.Value) != complete:
			return Incomplete, nil
		case key == attemptKey, key == overlay.BirthKey:
			return Complete, nil
		}
	}
	return NotBegun, nil
}
