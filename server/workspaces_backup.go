package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/transfer"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// maxTransfers is how many backups of workspaces are written or restored at the same time, and maxOfUser how many of one user.
	maxTransfers, maxOfUser = 16, 2
	// maxBackup bounds the file of a restore: it is kept in the data directory until the restore is done.
	maxBackup = 64 << 30
	// uploads is the folder of such files in the data directory.
	uploads = "restores"
)

// backupService writes and restores backups of workspaces. RBAC of the root does not decide about it: the workspace does, or the group
// system:masters.
func (s *Server) backupService() apiserver.Service {
	transfers := &transfers{running: map[string]int{}}
	return apiserver.Service{
		Prefix:      tenancyv1alpha1.BackupsPath,
		Allows:      func(who apiserver.User, _ string) bool { return who.IsAuthenticated() },
		LongRunning: func(*http.Request) bool { return true },
		Serve: func(w http.ResponseWriter, r *http.Request, who apiserver.User) {
			path := strings.TrimPrefix(r.URL.Path, tenancyv1alpha1.BackupsPath)
			if !transfers.enter(who.Name) {
				s.tenants.answer(w, path, &answer{http.StatusTooManyRequests, "too many backups of workspaces are written or restored now: retry later"})
				return
			}
			defer transfers.leave(who.Name)
			s.tenants.answer(w, path, s.tenants.serveBackup(w, r, who, path))
		},
	}
}

// transfers counts backups and restores. A client that reads slowly could otherwise keep all others from theirs.
type transfers struct {
	mu      sync.Mutex
	total   int
	running map[string]int // by user
}

// enter counts one of a user, unless too many run.
func (t *transfers) enter(user string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.total >= maxTransfers || t.running[user] >= maxOfUser {
		return false
	}
	t.total++
	t.running[user]++
	return true
}

func (t *transfers) leave(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	if t.running[user]--; t.running[user] == 0 {
		delete(t.running, user)
	}
}

// serveBackup answers a request for a backup or a restore.
func (t *tenants) serveBackup(w http.ResponseWriter, r *http.Request, who apiserver.User, path string) error {
	switch r.Method {
	case http.MethodGet:
		return t.backup(w, r, who, path)
	case http.MethodPut:
		return t.restore(w, r, who, path)
	}
	return &answer{http.StatusMethodNotAllowed, "use GET for a backup, or PUT for a restore"}
}

// answer is an error that the client of a service gets.
type answer struct {
	code    int
	message string
}

func (a *answer) Error() string { return a.message }

// answer answers a request of the service that has failed. Other errors are for the log alone.
func (t *tenants) answer(w http.ResponseWriter, path string, err error) {
	if err == nil {
		return
	}
	known, ok := errors.AsType[*answer](err)
	if !ok {
		t.s.cfg.Log.Error("backup or restore of a workspace failed", "workspace", path, "error", err)
		known = &answer{http.StatusServiceUnavailable, fmt.Sprintf("workspace %s cannot be backed up or restored now: the log of the server has the cause", path)}
	}
	http.Error(w, known.message, known.code)
}

// backup writes a backup of a workspace. A client notices if it is not complete: the connection is aborted, and the file has checksums.
func (t *tenants) backup(w http.ResponseWriter, r *http.Request, who apiserver.User, path string) error {
	in, source, release, err := t.openForCopy(r.Context(), who, path)
	if refused := (refusal)(""); errors.As(err, &refused) {
		return &answer{http.StatusForbidden, string(refused)}
	}
	if errors.Is(err, workspaces.ErrIncomplete) {
		return &answer{http.StatusConflict, fmt.Sprintf("workspace %s is not complete: wait until it is Ready", path)}
	}
	if err != nil {
		return err
	}
	defer release()
	w.Header().Set("Content-Type", "application/octet-stream")
	part := transfer.Part{Name: keyspaceOf(source.UID()), Source: source.keyspace}
	if _, err := transfer.Backup(in, w, []transfer.Part{part}, transfer.BackupOptions{Created: t.s.cfg.Clock.Now()}); err != nil {
		t.s.cfg.Log.Warn("backup of a workspace failed", "workspace", path, "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// restore fills a Workspace that was created for it with the objects of a backup, and answers when it is complete.
func (t *tenants) restore(w http.ResponseWriter, r *http.Request, who apiserver.User, path string) error {
	if !mayRestore(r.Context(), who) {
		return &answer{http.StatusForbidden, "only users in the group system:masters restore workspaces from backups, and not by impersonation"}
	}
	if t.running == nil || !workspaces.IsPath(path) {
		return &answer{http.StatusNotFound, fmt.Sprintf("workspace %s cannot be restored: check its path, and that the server is ready", path)}
	}
	ws, err := t.tree.Confirm(r.Context(), path, r.URL.Query().Get("uid"))
	if errors.Is(err, tenancy.ErrNotFound) {
		return &answer{http.StatusNotFound, fmt.Sprintf("workspace %s does not exist, or is another one than the restore is for", path)}
	}
	if err != nil {
		return err
	}
	state, err := t.stateOfCopy(r.Context(), string(ws.UID))
	switch {
	case err != nil:
		return err
	case ws.Spec.Source == nil || !ws.Spec.Source.Backup:
		return &answer{http.StatusConflict, fmt.Sprintf("workspace %s is not one to restore into: create another one with spec.source.backup", path)}
	case state == workspaces.Complete:
		return &answer{http.StatusConflict, fmt.Sprintf("workspace %s is restored already", path)}
	}
	archive, err := t.receive(r)
	if err != nil {
		return err
	}
	defer archive.Close()
	section, err := sectionOf(archive, r.URL.Query().Get("keyspace"))
	if err != nil {
		return &answer{http.StatusBadRequest, err.Error()}
	}
	if err := t.restoreFrom(r.Context(), path, ws, archive, section); err != nil {
		return restoreProblem(ws, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// receive stores the body of a request, and verifies it. The file is gone when it is closed.
func (t *tenants) receive(r *http.Request) (_ *transfer.Archive, err error) {
	dir := filepath.Join(t.s.cfg.DataDir, uploads)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, "*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name()) // an open file stays readable
	n, err := io.Copy(file, io.LimitReader(r.Body, maxBackup+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if n > maxBackup {
		return nil, &answer{http.StatusRequestEntityTooLarge, fmt.Sprintf("the backup is larger than %d GiB: restore it with atoll kv restore", maxBackup>>30)}
	}
	archive, err := transfer.OpenArchive(r.Context(), file.Name(), transfer.ProgressHooks{})
	if err != nil {
		t.s.cfg.Log.Info("a backup was refused", "error", err)
		return nil, &answer{http.StatusBadRequest, "the file is not a complete backup: back up the workspace again"}
	}
	return archive, nil
}

// sectionOf returns the keyspace of a backup that a restore is of; "" stands for the only one.
func sectionOf(a *transfer.Archive, keyspace string) (*transfer.Section, error) {
	if keyspace == "" {
		if len(a.Sections) != 1 {
			return nil, fmt.Errorf("the backup has %d keyspaces: select one of a workspace with --keyspace", len(a.Sections))
		}
		keyspace = a.Sections[0].Name
	}
	if !strings.HasPrefix(keyspace, workspaceKeyspaces) {
		return nil, fmt.Errorf("keyspace %s is not that of a workspace: their names begin with %s", keyspace, workspaceKeyspaces)
	}
	return a.Section(keyspace)
}

// restoreFrom fills a workspace, unless another request does.
func (t *tenants) restoreFrom(ctx context.Context, path string, w *tenancyv1alpha1.Workspace, a *transfer.Archive, section *transfer.Section) error {
	mine := false
	c := t.copies.begin(t.running, string(w.UID), func(ctx context.Context, c *copying) error {
		return t.fill(ctx, path, w, section.Revision, func(ctx context.Context, into kv.Keyspace, span kv.Span, change workspaces.CopyChange) error {
			_, err := transfer.Restore(ctx, a, section, into, t.copyOptions(c, span, t.served.OnlyReadable(change)))
			return err
		})
	}, &mine)
	if c == nil || !mine {
		return &answer{http.StatusTooManyRequests, "this server copies or restores other workspaces, or this one: retry later"}
	}
	defer t.copies.end(string(w.UID)) // before the file is closed
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restoreProblem returns the error of a restore as its user gets it.
func restoreProblem(w *tenancyv1alpha1.Workspace, err error) error {
	if unready, ok := errors.AsType[*tenancy.Unready](copyProblem(w, err)); ok {
		return &answer{http.StatusForbidden, unready.Message}
	}
	if unreadable, ok := errors.AsType[*workspaces.UnreadableError](err); ok {
		return &answer{http.StatusUnprocessableEntity, unreadable.Error()}
	}
	return err
}

// awaitBackup returns the state of a workspace that is to be restored.
func (t *tenants) awaitBackup(w *tenancyv1alpha1.Workspace) error {
	unready := &tenancy.Unready{Reason: "Restoring", Message: "its backup is not restored yet: atoll workspace restore sends it", After: backupInterval}
	if c := t.copies.of(string(w.UID)); c != nil {
		unready.Message, unready.After = c.progress(w), copyInterval
	}
	return unready
}
