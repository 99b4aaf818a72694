package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// encryptionWorkers is how many workspaces are read, or encrypted again, at the same time.
	encryptionWorkers = 4
	// encryptionOpens bounds how many workspaces are opened in a second: each stays open for a while.
	encryptionOpens = 10
	// encryptionTries is how often a workspace is encrypted again in one pass, if it then still has objects that are not.
	encryptionTries = 3
	// encryptionNamed is how many workspaces an error names.
	encryptionNamed = 10
)

// workspaceEncryption encrypts what workspaces have stored with the present key, as the API server does for the root. It reads the tables of
// all keyspaces, without opening the workspaces, and opens those that need a change.
type workspaceEncryption struct {
	t *tenants
	// ready is closed when workspaces can be opened.
	ready chan struct{}
	opens *rate.Limiter
	// form stands for Rewriting.Form in this process, if that is unknown.
	form string
	// known are the records of the last pass. They may have later revisions than the stored ones.
	known map[int64]encryptionRecord
}

func newWorkspaceEncryption(t *tenants) workspaceEncryption {
	return workspaceEncryption{t: t, ready: make(chan struct{}), opens: rate.NewLimiter(encryptionOpens, encryptionWorkers), form: uuid.NewString()}
}

// encryptWorkspaces is apiserver.DefaultEncryption.Others.
func (s *Server) encryptWorkspaces(ctx context.Context, objects apiserver.Rewriting) error {
	err := s.tenants.encryption.pass(ctx, objects)
	if errors.Is(err, tenancy.ErrStopping) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// pass makes one pass over all workspaces. It goes on after the error of one of them.
func (e *workspaceEncryption) pass(ctx context.Context, objects apiserver.Rewriting) (err error) {
	select {
	case <-e.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	names, err := e.t.s.datastore.Keyspaces(ctx)
	if err != nil {
		return fmt.Errorf("list the keyspaces of workspaces: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return uidOf(name) == Workspace || !ofWorkspace(name) }) // the root has been encrypted before
	if len(names) == 0 {
		objects.SetPending(0)
		return nil
	}
	return e.t.s.datastore.ownKeyspace(ctx, encryptionKeyspace, func(keyspace kv.Keyspace) error {
		p := &encryptionPass{workspaceEncryption: e, objects: objects, records: encryptionRecords{keyspace: keyspace}}
		if p.form = objects.Form(); p.form == "" {
			p.form = e.form
		}
		if err := p.records.load(ctx, e.known); err != nil {
			return err
		}
		err := p.run(ctx, names)
		e.known = p.records.all
		return err
	})
}

// encryptionPass is one pass.
type encryptionPass struct {
	*workspaceEncryption
	objects apiserver.Rewriting
	records encryptionRecords
	form    string

	mu      sync.Mutex
	pending int
	failed  []error
	// paths has the paths of workspaces by UID, nil until one is needed. It has those that were found, whether or not unread is set.
	paths  map[string]string
	unread error
}

func (p *encryptionPass) run(ctx context.Context, names []string) error {
	p.pending = len(names) - p.records.count(p.form)
	p.objects.SetPending(max(p.pending, 0))
	var workers errgroup.Group
	workers.SetLimit(encryptionWorkers)
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		workers.Go(func() error {
			if err := p.keyspace(ctx, name); err != nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.failed = append(p.failed, err)
			}
			return nil
		})
	}
	_ = workers.Wait()
	if err := ctx.Err(); err != nil {
		return errors.Join(err, p.records.flush(context.WithoutCancel(ctx)))
	}
	p.objects.SetPending(len(p.failed))
	if err := p.records.prune(ctx); err != nil {
		p.failed = append(p.failed, err)
	}
	return encryptionFailure(p.failed)
}

// encryptionFailure joins the errors of workspaces. There may be one of each.
func encryptionFailure(failed []error) error {
	if more := len(failed) - encryptionNamed; more > 0 {
		failed = append(failed[:encryptionNamed:encryptionNamed], fmt.Errorf("and %d more workspaces", more))
	}
	return errors.Join(failed...)
}

// isGone reports whether an error says that a keyspace does not exist any more, or has another name. The next pass has that name.
func isGone(err error) bool {
	return errors.Is(err, kv.ErrKeyNotFound) || errors.Is(err, kv.ErrDropped) || errors.Is(err, kv.ErrRenamed) || errors.Is(err, kv.ErrRepartitioned)
}

// keyspace encrypts what a keyspace has stored with the present key, and compacts the history from before, after the time for which history is kept.
func (p *encryptionPass) keyspace(ctx context.Context, name string) error {
	table, err := p.t.s.datastore.OpenExisting(ctx, name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.named(ctx, name), err)
	}
	err = p.table(ctx, name, table)
	if isGone(err) {
		if _, again := p.t.s.datastore.OpenExisting(ctx, name); isGone(again) {
			p.records.keep(idOf(table)) // it may have another name now
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.named(ctx, name), err)
	}
	return nil
}

func (p *encryptionPass) table(ctx context.Context, name string, table kv.Table) error {
	id := idOf(table)
	p.records.keep(id)
	head, err := table.Head(ctx)
	if err != nil {
		return err
	}
	was := p.records.of(id)
	if was.Form != p.form || head.Revision < was.Revision {
		was = encryptionRecord{}
	}
	is := was
	rewritten := false
	for try := 0; head.Revision != is.Revision; try++ {
		stale, at, err := p.look(ctx, table, was.Revision)
		if err != nil {
			return err
		}
		if !stale {
			is.Form, is.Revision = p.form, at
			break
		}
		if try == encryptionTries {
			return errors.New("another client goes on writing with the former key: restart the servers that do not use the present one")
		}
		rewritten = true
		if err := p.open(ctx, name, p.rewrite); err != nil {
			return err
		}
	}
	if is.Form != was.Form || rewritten {
		former, err := p.historyIsStale(ctx, table, is.Revision)
		if err != nil {
			return err
		}
		if former {
			is.Compact, is.Since = is.Revision, p.t.s.cfg.Clock.Now()
		}
	}
	if is.Compact > 0 && p.t.s.cfg.Clock.Since(is.Since) >= p.t.keyspaceOptions(name).Retention.Age {
		if err := p.compact(ctx, name, table, is.Compact); err != nil {
			return err
		}
		is.Compact, is.Since = 0, time.Time{}
	}
	// Without a record of a later revision, the objects since the former one are read again.
	durable := rewritten || is.Form != was.Form || is.Compact != was.Compact
	return p.records.set(ctx, id, is, durable)
}

// look reports whether a table has an object that was written after a revision and would now be stored in another form. Otherwise it returns the
// revision up to which all objects have the present form.
func (p *encryptionPass) look(ctx context.Context, table kv.Table, after kv.Revision) (stale bool, at kv.Revision, err error) {
	for _, prefix := range p.objects.Prefixes() {
		const page = 100
		for span := kv.Prefix([]byte(prefix)); ; {
			found, head, err := table.Range(ctx, kv.RangeRequest{Span: span, Limit: page}, false)
			if err != nil {
				return false, 0, err
			}
			if at == 0 {
				at = head.Revision
			}
			for _, one := range found.KVs {
				if one.ModRevision <= after {
					continue
				}
				if stale, err := p.objects.IsStale(ctx, string(one.Key), one.Value); stale || err != nil {
					return stale, 0, err
				}
			}
			if !found.More || len(found.KVs) == 0 {
				break
			}
			span.Start = append(slices.Clone(found.KVs[len(found.KVs)-1].Key), 0)
		}
	}
	return false, at, nil
}

// historyIsStale reports whether the history before a revision needs another key than the present one.
func (p *encryptionPass) historyIsStale(ctx context.Context, table kv.Table, before kv.Revision) (bool, error) {
	head, err := table.Head(ctx)
	if err != nil {
		return false, err
	}
	for after := max(head.Compacted, 1); after < before; {
		changes, _, err := table.Changes(ctx, after, before, 500, true)
		if err != nil {
			return false, err
		}
		if len(changes) == 0 {
			return false, nil
		}
		for _, c := range changes {
			if p.needsFormer(ctx, &c.KV) || p.needsFormer(ctx, c.Prev) {
				return true, nil
			}
		}
		after = changes[len(changes)-1].KV.ModRevision
	}
	return false, nil
}

// needsFormer reports whether a version of an object is not stored in the present form, or is unreadable.
func (p *encryptionPass) needsFormer(ctx context.Context, version *kv.KeyValue) bool {
	if version == nil || len(version.Value) == 0 {
		return false
	}
	stale, err := p.objects.IsStale(ctx, string(version.Key), version.Value)
	return stale || err != nil
}

// rewrite encrypts the objects of an open keyspace with the present key. Limits do not apply: a value may become larger.
func (p *encryptionPass) rewrite(ctx context.Context, open *partition.Keyspace) error {
	client, err := etcd.InProcess(open, "workspaces") // without the objects that are not stored
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // it has no connection
	ctx, exempt := kv.WithExemption(ctx)
	exempt(true)
	_, err = p.objects.Rewrite(ctx, client.KV)
	return err
}

// compact removes the history before a revision, as a workspace does that stays open for so long. That of a partition goes with its keyspace.
func (p *encryptionPass) compact(ctx context.Context, name string, table kv.Table, at kv.Revision) error {
	head, err := table.Head(ctx)
	if err != nil || head.Compacted >= at {
		return err
	}
	if _, _, part := kv.ParsePartitionName(name); part {
		return nil
	}
	return p.open(ctx, name, func(ctx context.Context, open *partition.Keyspace) error {
		if _, err := open.Compact(ctx, at, false); err != nil && !errors.Is(err, kv.ErrCompacted) {
			return fmt.Errorf("compact the history that needs a former key: %w", err)
		}
		return nil
	})
}

// open opens the workspace of a keyspace. The context of use ends when the workspace is being deleted.
func (p *encryptionPass) open(ctx context.Context, name string, use func(context.Context, *partition.Keyspace) error) error {
	if err := p.opens.Wait(ctx); err != nil {
		return err
	}
	uid := uidOf(name)
	if uid == definitionsKeyspace {
		if _, err := p.t.openSystem(ctx); err != nil {
			return err
		}
		p.t.system.mu.Lock()
		open := p.t.system.open // until the server stops
		p.t.system.mu.Unlock()
		if open == nil {
			return tenancy.ErrStopping
		}
		return use(ctx, open.keyspace)
	}
	path, err := p.path(ctx, uid)
	if err != nil {
		return err
	}
	in, open, release, err := p.t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) {
		err = errors.New("it is being deleted or moved")
	}
	if err != nil {
		return err
	}
	defer release()
	if open.UID() != uid {
		return errors.New("it was deleted or moved, and another workspace has its path")
	}
	return use(in, open.keyspace)
}
