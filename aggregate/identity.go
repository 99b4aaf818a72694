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

// Groups that users of members are in, for roles to be bound to.
const (
	// GroupMembers is every authenticated user of every member.
	GroupMembers = "atoll:members"
	// GroupClusterPrefix and a cluster's name is every authenticated user of it.
	GroupClusterPrefix = "atoll:cluster:"
	// GroupCollectors is the members' garbage collectors. They must be able to
	// list and watch metadata of whatever is exposed to them: one kind that
	// cannot be listed can hold up the collection of all others in the member.
	GroupCollectors = v1alpha1.CollectorsGroup
)

// ClusterOf names the member that a user with these groups is of, if of one. Only
// this package's handler puts users into both groups, and each into one cluster's.
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

// headerNames are canonical.
type headerNames struct {
	username, uid, group, extraPrefix []string
}

func readHeaderNames(p FrontProxy) (headerNames, error) {
	n := headerNames{canonical(p.UsernameHeaders), canonical(p.UIDHeaders), canonical(p.GroupHeaders), canonical(p.ExtraHeaderPrefixes)}
	if len(n.username) == 0 {
		return n, errors.New("no header is named that carries the user")
	}
	return n, nil
}

// A speaker is the user of a member that a request is made for.
type speaker struct {
	// name is what the member calls the user; info is what Atoll does.
	name string
	info *memberUser
}

// memberUser is a user of a member: who it is here, and who it is there.
type memberUser struct {
	user.DefaultInfo
	cluster string
	there   user.DefaultInfo
}

// identify reads the user from the headers that the member's front proxy set.
// Every name is put below the cluster's, so no member can name a user or a
// group of another member or of Atoll, whatever it sends.
func (m *member) identify(h http.Header) (speaker, error) {
	name, err := single(h, m.headers.username)
	if err != nil {
		return speaker{}, err
	}
	if strings.TrimSpace(name) == "" {
		return speaker{}, fmt.Errorf("header %s names no user", strings.Join(m.headers.username, " or "))
	}
	uid, err := single(h, m.headers.uid)
	if err != nil {
		return speaker{}, err
	}
	extra, err := m.extra(h)
	if err != nil {
		return speaker{}, err
	}

	info := &memberUser{
		DefaultInfo: user.DefaultInfo{Name: m.name + ":" + name, UID: uid, Extra: extra},
		cluster:     m.name,
		there:       user.DefaultInfo{Name: name, UID: uid, Extra: extra},
	}
	anonymous := name == user.Anonymous
	for _, header := range m.headers.group {
		for _, group := range h[header] {
			if group == "" {
				continue
			}
			info.Groups = append(info.Groups, m.name+":"+group)
			info.there.Groups = append(info.there.Groups, group)
			anonymous = anonymous || group == user.AllUnauthenticated
		}
	}
	if anonymous {
		// What is granted to a cluster's users is not meant for passers-by.
		info.Groups = append(info.Groups, user.AllUnauthenticated)
	} else {
		info.Groups = append(info.Groups, GroupMembers, GroupClusterPrefix+m.name, user.AllAuthenticated)
	}
	return speaker{name, info}, nil
}

// single gives the one value of the named headers, or "". A second value means
// that somebody besides the proxy set one, and nobody can tell which is true.
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
	return "", fmt.Errorf("header %s is given %d times", strings.Join(names, " or "), len(values))
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
				return nil, fmt.Errorf("header %s does not name a key", header)
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

// strip takes every header out that says who the user is, or would like to be:
// from here on that is known.
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
