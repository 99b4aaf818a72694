package aggregate

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Groups of the members' users, for role bindings.
const (
	// GroupMembers has every authenticated user of every member.
	GroupMembers = "atoll:members"
	// GroupClusterPrefix and a cluster's name form the group of every authenticated
	// user of that cluster.
	GroupClusterPrefix = "atoll:cluster:"
	// GroupCollectors has the members' garbage collectors. They must be able to list
	// and watch the metadata of everything that is exposed to them: one kind that
	// cannot be listed can block the collection of all others in the member.
	GroupCollectors = v1alpha1.CollectorsGroup
)

// ClusterOf returns the member cluster of a user with these groups, if there is one.
// Only this package's handler adds users to both groups, and to those of one cluster.
func ClusterOf(groups []string) (cluster string, ok bool) {
	if !slices.Contains(groups, GroupMembers) {
		return "", false
	}
	for _, group := range groups {
		name, is := strings.CutPrefix(group, GroupClusterPrefix)
		if is && cluster != "" {
			return "", false
		}
		if is {
			cluster = name
		}
	}
	return cluster, cluster != ""
}

// headerNames are in canonical form.
type headerNames struct {
	username, uid, group, extraPrefix []string
}

func readHeaderNames(p FrontProxy) (headerNames, error) {
	n := headerNames{canonical(p.UsernameHeaders), canonical(p.UIDHeaders), canonical(p.GroupHeaders), canonical(p.ExtraHeaderPrefixes)}
	if len(n.username) == 0 {
		return n, errors.New("no username header is configured")
	}
	return n, nil
}

// requester is the member's user on whose behalf a request is made.
type requester struct {
	// name is the user's name in the member; info is the user in Atoll.
	name string
	info *memberUser
}

// memberUser is a user of a member, as Atoll and as the member name it.
type memberUser struct {
	user.DefaultInfo
	cluster  string
	inMember user.DefaultInfo
}

// identify reads the user from the headers that the member's front proxy set. It
// prefixes every name with the cluster's. So a member cannot name a user or group of
// another member or of Atoll, whatever it sends.
func (m *member) identify(h http.Header) (requester, error) {
	name, err := single(h, m.headers.username)
	if err != nil {
		return requester{}, err
	}
	if strings.TrimSpace(name) == "" {
		return requester{}, fmt.Errorf("header %s has no user name", strings.Join(m.headers.username, " or "))
	}
	uid, err := single(h, m.headers.uid)
	if err != nil {
		return requester{}, err
	}
	extra, err := m.extra(h)
	if err != nil {
		return requester{}, err
	}

	info := &memberUser{
		DefaultInfo: user.DefaultInfo{Name: m.name + ":" + name, UID: uid, Extra: extra},
		cluster:     m.name,
		inMember:    user.DefaultInfo{Name: name, UID: uid, Extra: extra},
	}
	anonymous := name == user.Anonymous
	for _, header := range m.headers.group {
		for _, group := range h[header] {
			if group == "" {
				continue
			}
			info.Groups = append(info.Groups, m.name+":"+group)
			info.inMember.Groups = append(info.inMember.Groups, group)
			anonymous = anonymous || group == user.AllUnauthenticated
		}
	}
	if anonymous {
		// Roles granted to a cluster's users do not apply to unauthenticated ones.
		info.Groups = append(info.Groups, user.AllUnauthenticated)
	} else {
		info.Groups = append(info.Groups, GroupMembers, GroupClusterPrefix+m.name, user.AllAuthenticated)
	}
	return requester{name, info}, nil
}

// single returns the only value of the named headers, or "". A second value means that
// something besides the proxy set one, and there is no way to tell which is genuine.
func single(h http.Header, names []string) (string, error) {
	var values []string
	for _, name := range names {
		values = append(values, h[name]...)
	}
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", fmt.Errorf("header %s is set %d times", strings.Join(names, " or "), len(values))
}

func (m *member) extra(h http.Header) (map[string][]string, error) {
	var extra map[string][]string
	for _, header := range slices.Sorted(maps.Keys(h)) {
		for _, prefix := range m.headers.extraPrefix {
			rest, ok := strings.CutPrefix(header, prefix)
			if !ok {
				continue
			}
			key, err := url.PathUnescape(strings.ToLower(rest))
			if err != nil || key == "" {
				return nil, fmt.Errorf("header %s has no valid extra key", header)
			}
			if extra == nil {
				extra = map[string][]string{}
			}
			extra[key] = append(extra[key], h[header]...)
			break
		}
	}
	return extra, nil
}

// strip removes every header that identifies or impersonates a user. From here on the
// user is in the context.
func (m *member) strip(h http.Header) {
	for _, names := range [][]string{m.headers.username, m.headers.uid, m.headers.group, {"Authorization", "Proxy-Authorization", "Cookie"}} {
		for _, name := range names {
			h.Del(name)
		}
	}
	prefixes := append([]string{"X-Remote-", "Impersonate-"}, m.headers.extraPrefix...)
	for header := range h {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(header, p) }) {
			delete(h, header)
		}
	}
}
