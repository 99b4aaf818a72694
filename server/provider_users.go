package server

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/atoll-dev/atoll/infra/containment"
	"github.com/atoll-dev/atoll/infra/plugin"
)

// Users without accounts. Each contained provider gets one. systemd and Debian assign none of
// these numbers, and user namespaces of containers, which have 65,536 numbers, contain them.
const firstProviderUser, providerUsers = 60600, 500

// providerUserNames are the users that providers run as.
type providerUserNames struct {
	// fixed is that of ProviderUser, for all providers.
	fixed *plugin.User
	// each gives each contained provider one, unless fixed is set.
	each *plugin.UserPool
}

func (u providerUserNames) others() bool { return u.fixed != nil || u.each != nil }

// providerUsers returns the users that providers run as. All of them are the server's own user unless
// the server is root and may change its user.
func (c *Config) providerUsers() (providerUserNames, error) {
	fixed, err := c.providerUser()
	if err != nil || fixed != nil {
		return providerUserNames{fixed: fixed}, err
	}
	if os.Geteuid() != 0 || !mayBecome(firstProviderUser, firstProviderUser+providerUsers-1) {
		return providerUserNames{}, nil
	}
	return providerUserNames{each: plugin.NewUserPool(containment.Users{First: firstProviderUser, Count: providerUsers})}, nil
}

// providerUser parses ProviderUser. It returns nil if that is empty.
func (c *Config) providerUser() (*plugin.User, error) {
	if c.ProviderUser == "" {
		return nil, nil
	}
	user, group, ok := strings.Cut(c.ProviderUser, ":")
	uid, errUser := strconv.ParseUint(user, 10, 32)
	gid, errGroup := strconv.ParseUint(group, 10, 32)
	switch {
	case !ok || errUser != nil || errGroup != nil:
		return nil, fmt.Errorf("provider user %q is not numeric UID:GID: use a form such as 65534:65534", c.ProviderUser)
	case uid == 0 || gid == 0:
		return nil, fmt.Errorf("provider user %q: providers do not run as root: use another UID:GID, or omit --provider-user to give each provider one of its own", c.ProviderUser)
	case os.Geteuid() != 0:
		return nil, errors.New("provider user: only root can run programs as another user: start the server as root, or omit --provider-user")
	}
	return &plugin.User{UID: uint32(uid), GID: uint32(gid)}, nil
}

// neededCapabilities are those with which a server starts a process as another user, reaches its
// socket and directory, and stops it: CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_SETGID
// and CAP_SETUID. In a container, root may have none.
const neededCapabilities = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 | 1<<7

// mayBecome reports whether this process can run others as any user of a range.
func mayBecome(first, last uint64) bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	groups, err := os.ReadFile("/proc/self/gid_map")
	return err == nil && capabilities(string(status))&neededCapabilities == neededCapabilities &&
		isMapped(string(users), first, last) && isMapped(string(groups), first, last)
}

// capabilities returns the effective capabilities in a /proc/PID/status.
func capabilities(status string) uint64 {
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			effective, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err == nil {
				return effective
			}
		}
	}
	return 0
}

// isMapped reports whether one line of a /proc/PID/uid_map has a whole range of users.
func isMapped(table string, first, last uint64) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		from, err := strconv.ParseUint(fields[0], 10, 64)
		count, errCount := strconv.ParseUint(fields[2], 10, 64)
		if err == nil && errCount == nil && from <= first && last-from < count {
			return true
		}
	}
	return false
}
