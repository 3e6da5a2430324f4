//go:build linux

package launch

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// ownMounts leaves the host's mount namespace. Private, not slave: a later mount
// on the host must not appear below a staged directory, where it would have
// neither its map nor its flags.
func ownMounts() error {
	if !defence.LaunchOwnMounts.Off() {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
	}
	if defence.LaunchPrivateMounts.Off() {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// cloneAll gives one detached mount for each of the plan's, in order, with its
// attributes set. Every mount is tried, so that the error has every reason.
func (p Plan) cloneAll() ([]int, error) {
	maps := owners{plan: p, known: map[owner]int{}}
	defer maps.close()
	trees := make([]int, len(p.Mounts))
	failure := &errdefs.Error{Op: "launch"}
	for i, m := range p.Mounts {
		tree, err := m.clone(&maps)
		if err == nil {
			trees[i] = tree
			continue
		}
		kind := errdefs.Invalid
		if errors.Is(err, errdefs.Unsupported) {
			kind = errdefs.Unsupported
		}
		if failure.Kind == "" {
			failure.Kind = kind
		}
		failure.Reasons = append(failure.Reasons, fmt.Sprintf("mount %s: %v", m.Name, err))
	}
	if len(failure.Reasons) > 0 {
		return nil, failure
	}
	return trees, nil
}

// clone opens the source and gives a detached copy of its mount.
//
// The copy is recursive, and so are its attributes: the kernel sets them on the
// whole tree or not at all, so that no mount inside escapes the map, the flags or
// read-only. A copy without the mounts inside would uncover what the host has
// mounted over.
func (m Mount) clone(maps *owners) (int, error) {
	dir, stat, err := openDir(m.Source)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	if m.Identity != nil && *m.Identity != identity(stat) && !defence.LaunchIdentity.Off() {
		return -1, fmt.Errorf("%s is not the directory that was there before", m.Source)
	}
	tree, err := unix.OpenTree(dir, "",
		unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("copy the mount of %s: %w", m.Source, err)
	}
	if err := m.attribute(tree, owner{uid: stat.Uid, gid: stat.Gid}, maps); err != nil {
		_ = unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// attribute sets map, flags and propagation of a detached tree.
func (m Mount) attribute(tree int, of owner, maps *owners) error {
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if !defence.LaunchNoSUID.Off() {
		attr.Attr_set |= unix.MOUNT_ATTR_NOSUID
	}
	if !defence.LaunchNoDev.Off() {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if !m.Writable && !defence.LaunchReadOnly.Off() {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	refusal := error(nil)
	if maps.needed(of) && !m.Unmapped && !defence.LaunchOwnerMap.Off() {
		refusal = setMapped(tree, attr, of, maps)
		if refusal == nil {
			return nil
		}
		if m.Writable && !defence.LaunchUnmappedRefused.Off() {
			return errdefs.New(errdefs.Unsupported, "", fmt.Sprintf(
				"files in %s cannot be made to belong to its owner (uid %d, gid %d): %v",
				m.Source, of.uid, of.gid, refusal))
		}
	}
	if err := setAttributes(tree, attr); err != nil {
		return fmt.Errorf("set the attributes of %s: %w", m.Source, errors.Join(err, refusal))
	}
	return nil
}

// setMapped sets the attributes together with the owner's map.
func setMapped(tree int, attr unix.MountAttr, of owner, maps *owners) error {
	userns, err := maps.namespace(of)
	if err != nil {
		return err
	}
	attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
	attr.Userns_fd = uint64(userns)
	err = setAttributes(tree, attr)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("its file system, or one mounted inside, takes no idmapped mounts: %w", err)
	}
	return err
}

func setAttributes(tree int, attr unix.MountAttr) error {
	flags := uint(unix.AT_EMPTY_PATH | unix.AT_RECURSIVE)
	if defence.LaunchInnerMounts.Off() {
		flags = unix.AT_EMPTY_PATH
	}
	if err := unix.MountSetattr(tree, "", flags, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// stage mounts a small file system for the staging directory and attaches the
// trees in it.
func (p Plan) stage(trees []int) error {
	anchor, inside, err := p.anchor()
	if err != nil {
		return err
	}
	defer unix.Close(anchor) //nolint:errcheck // an O_PATH descriptor has nothing to lose
	base, err := tmpfs(len(trees) + len(inside))
	if err != nil {
		return err
	}
	if err := unix.MoveMount(base, "", anchor, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the staging file system: %w", err)
	}
	unix.Umask(0o022)
	prefix := ""
	for _, name := range inside {
		prefix = filepath.Join(prefix, name)
		if err := unix.Mkdirat(base, prefix, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", prefix, err)
		}
	}
	for i, m := range p.Mounts {
		at := filepath.Join(prefix, m.Name)
		if err := unix.Mkdirat(base, at, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", at, err)
		}
		if err := unix.MoveMount(trees[i], "", base, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("attach %s: %w", m.Name, err)
		}
	}
	return nil
}

// anchor gives the directory to mount the staging file system on, and what has
// to be made inside it: the staging directory itself and nothing, or the first of
// its parents that others may not search and the rest of the path. The sources
// are open by then, so that it does not matter what is hidden by this.
func (p Plan) anchor() (int, []string, error) {
	names := strings.Split(strings.TrimPrefix(p.Staging, "/"), "/")
	for i := range names {
		path := "/" + filepath.Join(names[:i+1]...)
		fd, stat, err := openDir(path)
		if err != nil {
			return -1, nil, err
		}
		if stat.Mode&unix.S_IXOTH == 0 || i == len(names)-1 {
			return fd, names[i+1:], nil
		}
		if err := unix.Close(fd); err != nil {
			return -1, nil, fmt.Errorf("close %s: %w", path, err)
		}
	}
	return -1, nil, errors.New("the root directory cannot be used")
}

// tmpfs gives a detached file system for so many directories and nothing else.
func tmpfs(directories int) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs) //nolint:errcheck // nothing is written through it
	for _, option := range [][2]string{
		{"mode", "0755"}, {"size", "64k"}, {"nr_inodes", fmt.Sprint(directories + 8)},
	} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("tmpfs option %s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make a tmpfs: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return mount, nil
}
