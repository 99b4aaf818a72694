//go:build unix

package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/atoll-dev/atoll/infra/containment"
)

// A launcher is this executable, started to become a provider: it restricts itself as a profile says
// and then executes the provider. So the restrictions hold before the provider's first instruction,
// and for everything that it starts.

// launcherFailureFD is the descriptor on which a launcher reports why it failed. It is closed when the
// provider is executed.
const launcherFailureFD = 3

// A launcherRequest is the only line on a launcher's standard input. It has the provider's environment,
// which can contain secrets and must not influence the launcher.
type launcherRequest struct {
	Profile containment.Profile
	Program string
	Args    []string
	Env     []string
	// CheckOnly applies the profile and executes nothing.
	CheckOnly bool
}

// A launcherFailure is a launcher's report.
type launcherFailure struct {
	// Containment is set if the profile could not be applied.
	Containment bool
	Text        string
}

// ErrNotContained is returned when a provider cannot be contained, so that it is not started.
var ErrNotContained = containment.ErrImpossible

func (f launcherFailure) err() error {
	if f.Containment {
		return fmt.Errorf("%w: %s", ErrNotContained, f.Text)
	}
	return errors.New(f.Text)
}

// A handoff is the server's end of the pipes to a launcher.
type handoff struct {
	request  launcherRequest
	input    *os.File
	failures *os.File
	theirs   []*os.File
}

// newHandoff connects a command, which starts a launcher, with a request.
func newHandoff(cmd *exec.Cmd, request launcherRequest) (*handoff, error) {
	in, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	failures, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), input.Close())
	}
	cmd.Stdin, cmd.ExtraFiles = in, []*os.File{out}
	return &handoff{request: request, input: input, failures: failures, theirs: []*os.File{in, out}}, nil
}

// started closes the launcher's ends of the pipes, which it has inherited.
func (h *handoff) started() {
	for _, f := range h.theirs {
		_ = f.Close()
	}
}

// close gives up on a launcher that did not start.
func (h *handoff) close() {
	h.started()
	_, _ = h.input.Close(), h.failures.Close()
}

// await sends the request, and waits until the provider is executed or the launcher has failed.
func (h *handoff) await() error {
	defer h.failures.Close()
	line, err := json.Marshal(h.request)
	if err == nil {
		_, err = h.input.Write(append(line, '\n'))
	}
	if closed := h.input.Close(); err == nil {
		err = closed
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("writing to the launcher: %w", err)
	}
	text, err := io.ReadAll(h.failures)
	if err != nil || len(text) == 0 {
		return err
	}
	var failure launcherFailure
	if err := json.Unmarshal(text, &failure); err != nil {
		return fmt.Errorf("reading from the launcher: %w", err)
	}
	return failure.err()
}

// Launch becomes the provider that a server requests: the command in Config.Launcher does nothing
// else. It returns only if that fails.
func Launch() error {
	runtime.LockOSThread() // restrictions hold for a thread and its children
	var request launcherRequest
	line, err := bufio.NewReader(os.Stdin).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &request)
	}
	if err != nil {
		return errors.New("this command is started by the Atoll server; do not run it by hand")
	}
	report := json.NewEncoder(os.NewFile(launcherFailureFD, "failures"))
	if failure := become(request); failure != nil {
		_ = report.Encode(failure) // the server may be gone
		return failure.err()
	}
	return nil
}

// become confines this process and executes the provider. It returns nil only after a check.
func become(request launcherRequest) *launcherFailure {
	program, err := openProgram(request.Program)
	if err != nil {
		return &launcherFailure{Text: err.Error()}
	}
	if err := confine(request.Profile); err != nil {
		return &launcherFailure{Containment: true, Text: err.Error()}
	}
	if request.CheckOnly {
		return nil
	}
	return &launcherFailure{Text: execute(request, program).Error()}
}

// contained returns the profile of a process, or nil if the provider is not to be contained.
func (h *Host) contained(binary Binary, dir string, user *User, own bool) (*containment.Profile, error) {
	if binary.Containment == nil {
		return nil, nil
	}
	if len(h.config.Launcher) == 0 {
		return nil, fmt.Errorf("%w: this program has no launcher: set Launcher in the configuration of its server, or spec.containment: None on the Provider", ErrNotContained)
	}
	process := containment.Process{
		Program: binary.Path, Package: binary.Package, Directory: dir,
		TrustedCertificates: trustedCertificates(h.config.Inherit), OwnUser: own,
	}
	if user != nil {
		process.User = &containment.User{UID: user.UID, GID: user.GID}
	}
	machine := h.config.Machine
	if machine == nil {
		machine = thisMachine()
	}
	p, err := containment.Decide(*binary.Containment, process, *machine)
	if err != nil && !errors.Is(err, ErrNotContained) {
		err = fmt.Errorf("%w: %w", ErrNotContained, err)
	}
	return &p, err
}

// trustedCertificates returns the files and directories of certificates that the server's environment
// names, if providers inherit the variables.
func trustedCertificates(inherited []string) (out []string) {
	for _, name := range inherited {
		switch name {
		case "SSL_CERT_FILE", "SSL_CERT_DIR":
			for _, path := range filepath.SplitList(os.Getenv(name)) {
				if filepath.IsAbs(path) {
					out = append(out, filepath.Clean(path))
				}
			}
		}
	}
	return out
}

// userOf returns the user that a provider runs as, nil for the server's own, and whether no other
// program runs as that user.
func (h *Host) userOf(binary Binary) (user *User, own bool, err error) {
	if h.config.User != nil || h.config.Users == nil || binary.Containment == nil {
		return h.config.User, false, nil
	}
	u, err := h.config.Users.pick(h.config.UserScope, binary.Name)
	return &u, true, err
}

// Containment describes how a provider is contained on this machine.
type Containment struct {
	// User is UID:GID, empty for the server's own user.
	User string
	// Enforced and NotEnforced are parts, such as Files and Signals.
	Enforced, NotEnforced []string
}

// CheckContainment applies a provider's containment to a process that then ends, so that everything
// that can fail does. It returns nil if the provider is not to be contained. It does not run the
// provider.
func (h *Host) CheckContainment(ctx context.Context, binary Binary) (*Containment, error) {
	if binary.Containment == nil {
		return nil, nil
	}
	user, own, err := h.userOf(binary)
	if err != nil {
		return nil, err
	}
	dir, err := h.privateDirectory(user)
	if err != nil {
		return nil, fmt.Errorf("provider %s: creating its private directory: %w", binary.Name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	profile, err := h.contained(binary, dir, user, own)
	if err != nil {
		return nil, err
	}
	if err := h.tryProfile(ctx, binary, *profile, dir); err != nil {
		return nil, err
	}
	out := &Containment{Enforced: profile.Enforced, NotEnforced: profile.NotEnforced}
	if profile.User != nil {
		out.User = strconv.FormatUint(uint64(profile.User.UID), 10) + ":" + strconv.FormatUint(uint64(profile.User.GID), 10)
	}
	return out, nil
}

// tryProfile runs a launcher that applies a profile and exits.
func (h *Host) tryProfile(ctx context.Context, binary Binary, profile containment.Profile, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, h.config.StartTimeout)
	defer cancel()
	cmd := exec.Command(h.config.Launcher[0], h.config.Launcher[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, []string{}, ownProcessGroup()
	r := newRunner(h.spawner, cmd)
	r.request = &launcherRequest{Profile: profile, Program: binary.Path, CheckOnly: true}
	defer context.AfterFunc(ctx, func() { _ = r.Kill(ctx) })()
	err := r.Start(ctx)
	if r.ID() == "" {
		return fmt.Errorf("%w: starting the launcher: %w", ErrNotContained, err)
	}
	output := &tail{}
	_, _ = io.Copy(output, r.stderr) // ends with the process
	<-r.done
	r.stdout.Close()
	r.stderr.Close()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && r.exit() != "exit status 0":
		err = fmt.Errorf("%w: its launcher exited: %s; its last output: %s", ErrNotContained, r.exit(), strings.TrimSpace(output.last()))
	}
	return err
}
