package page

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

// groupPage has no script, because the browser reloads the page by itself.
var groupPage = template.Must(template.ParseFS(web, "web/group.html"))

// groupView is the content of a group's page. It shows what lockctl partitions shows.
type groupView struct {
	Name    string
	Trouble string // why the view is out of date, or empty
	At      string
	Found   bool
	Title   string
	Workers []workerView
	Changes []changeView
}

type workerView struct {
	ID, Weight, Who, Joined, Partitions string
	Owned, Quota                        int
	Link                                string // to its membership lock
}

// changeView is a partition that is unowned or not held by its planned owner.
type changeView struct {
	Number         int
	Link           string
	Owner, Planned string
	Unowned        bool
	Waiting        int
}

// groupOf returns the name of the group that a lock belongs to, or "" if it is not the held lock
// of a member or partition.
func groupOf(info admin.Info) string {
	if info.Kind != admin.KindMutex || info.Holder == nil || info.Holder.Meta["member"] == "" {
		return ""
	}
	for _, room := range []string{".member.", ".part."} {
		if i := strings.LastIndex(info.Name, room); i > 0 && !strings.Contains(info.Name[i+len(room):], ".") {
			return info.Name[:i]
		}
	}
	return ""
}

func lockLink(name string) string { return "lock?kind=mutex&name=" + url.QueryEscape(name) }

// viewOf returns the view of the named group, given the group's locks.
func viewOf(name string, infos []admin.Info, now time.Time) groupView {
	v := groupView{Name: plain.Text(name), At: now.UTC().Format("15:04:05 MST")}
	groups := partition.Groups(infos)
	i := slices.IndexFunc(groups, func(g partition.State) bool { return g.Group == name })
	if i < 0 {
		return v
	}
	g := groups[i]
	type worker struct{ id, former string } // former names the holder if it is an earlier process with a member's id
	ownerOf := func(p partition.Placement) worker {
		if p.Former {
			return worker{p.Member, holderName(*p.Holder)}
		}
		return worker{id: p.Member}
	}
	owned, quota := make(map[worker][]int), make(map[string]int)
	unowned, moving := 0, 0
	for _, p := range g.Partitions {
		if p.Member != "" {
			by := ownerOf(p)
			owned[by] = append(owned[by], p.Number)
		}
		if p.Planned != "" {
			quota[p.Planned]++
		}
		c := changeView{
			Number: p.Number, Link: lockLink(name + ".part." + strconv.Itoa(p.Number)),
			Owner: plain.Text(p.Member), Planned: plain.Text(p.Planned), Waiting: p.Waiting, Unowned: p.Holder == nil,
		}
		switch {
		case p.Holder == nil:
			unowned++
			c.Owner = "nobody"
		case p.Planned == "" || p.Planned == p.Member && !p.Former:
			continue
		default:
			moving++
			if p.Member == "" || p.Former { // someone locked it by hand, or a worker restarted with the same id
				c.Owner = holderName(*p.Holder)
			}
		}
		if len(v.Changes) < most {
			v.Changes = append(v.Changes, c)
		}
	}
	v.Found = true
	v.Title = fmt.Sprintf("partitions: %d, members: %d, unowned: %d, in motion: %d", g.Count, len(g.Members), unowned, moving)
	for _, m := range g.Members {
		own := owned[worker{id: m.ID}]
		v.Workers = append(v.Workers, workerView{
			ID: plain.Text(m.ID), Weight: strconv.Itoa(m.Weight), Who: who(m.Owner, m.Host, m.PID), Joined: m.Since.UTC().Format("2006-01-02 15:04:05Z"),
			Owned: len(own), Quota: quota[m.ID], Partitions: numbers(own), Link: memberLink(infos, m.Token),
		})
		delete(owned, worker{id: m.ID})
	}
	for _, p := range g.Partitions { // workers that are leaving, ordered by their first partition
		if of := owned[ownerOf(p)]; p.Member != "" && of != nil {
			v.Workers = append(v.Workers, workerView{ID: plain.Text(p.Member) + " (leaving)", Weight: "-", Who: holderName(*p.Holder), Joined: "-", Owned: len(of), Partitions: numbers(of)})
			delete(owned, ownerOf(p))
		}
	}
	return v
}

// memberLink returns a link to the lock of the membership with this token, or "".
func memberLink(infos []admin.Info, token uint64) string {
	for _, info := range infos {
		if info.Kind == admin.KindMutex && info.Holder != nil && info.Holder.Token == token {
			return lockLink(info.Name)
		}
	}
	return ""
}

// numbers formats ascending numbers as ranges, such as "0-3, 7".
func numbers(all []int) string {
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		part := strconv.Itoa(all[i])
		if j > i {
			part += "-" + strconv.Itoa(all[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// group serves a group's page.
func (s *server) group(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if name == "" {
		http.Error(w, "specify a group", http.StatusBadRequest)
		return
	}
	v := viewOf(name, s.hub.src.Below(name+"."), time.Now())
	if st := s.hub.src.State(); st.Condition != mirror.Live {
		v.Trouble = st.String()
	}
	var b bytes.Buffer
	if err := groupPage.Execute(&b, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kinds[".html"])
	_, _ = w.Write(b.Bytes())
}
