package containment

import "hash/fnv"

// Users is a range of numeric users without accounts. Each provider gets one.
type Users struct{ First, Count uint32 }

// Pick returns the user of a provider: the same one after each restart, unless that one is taken by
// another provider. taken are the users of the other providers. If all are taken, two share one.
func (u Users) Pick(provider string, taken map[uint32]bool) User {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(provider)) // a hash returns no errors
	start := hash.Sum32() % u.Count
	for i := range u.Count {
		if uid := u.First + (start+i)%u.Count; !taken[uid] {
			return User{uid, uid}
		}
	}
	return User{u.First + start, u.First + start}
}
