/*
 * uslab from C++17: object caches, std::pmr memory resources, a container allocator, shrinkers.
 *
 *   uslab::cache<T>         objects of one type; make_unique; bulk
 *   uslab::local_cache<T>   the same for one thread, at about half the cost
 *   uslab::memory_resource  std::pmr on uslab_malloc
 *   uslab::heap_resource    std::pmr on a private heap, which is freed as a whole
 *   uslab::allocator<T>     for std::list, std::map, std::unordered_map, ...: nodes come from a
 *                           cache of their size, arrays from uslab_malloc
 *   uslab::heap, uslab::heap_allocator<T>
 *                           a private heap, and an allocator for containers in it
 *   uslab::shrinker         two callables, registered while the object lives
 *
 * A function that fails throws std::bad_alloc if there is no memory, and otherwise
 * std::system_error with the error number; the header needs exceptions. A noexcept function returns
 * nullptr or false. The rules of uslab.h for threads, forks, signals and blocking hold here. While
 * a thread moves or destroys an object of these classes, no other thread may use that object.
 */
#ifndef USLAB_HPP
#define USLAB_HPP

#include "uslab.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

namespace uslab {

namespace detail {

/* Throws the exception for errno. */
[[noreturn]] inline void fail(const char *what)
{
    if (errno == ENOMEM) throw std::bad_alloc();
    throw std::system_error(errno, std::generic_category(), what);
}

/* A structure of uslab.h, zeroed but for type_size. */
template <typename Options> Options sized() noexcept
{
    Options options{};
    options.type_size = sizeof(Options);
    return options;
}

/* The same pointer, of which the compiler does not know how many bytes were asked for: it would let
 * the program use no more of them (_FORTIFY_SOURCE). */
template <typename T> T *any_size(T *memory) noexcept
{
    __asm__("" : "+r"(memory));
    return memory;
}

} // namespace detail

/* Options of a cache: the fields of uslab_cache_options. */
struct cache_options {
    std::size_t align = 0;
    unsigned flags = 0;
    unsigned min_objects = 0, min_order = 0, max_order = 0, sheaf_capacity = 0;
    unsigned numa_policy = USLAB_NUMA_LOCAL, numa_node = 0;
};

/*
 * A cache of objects of type T. It can be moved, not copied. All its objects must be freed before
 * its destructor runs; otherwise uslab reports them, and the cache stays in the process.
 */
template <typename T> class cache {
public:
    /* Destroys an object and frees its memory. */
    class deleter {
    public:
        deleter() noexcept = default;
        explicit deleter(uslab_cache *from) noexcept : from_(from) {}
        void operator()(T *object) const noexcept
        {
            object->~T();
            uslab_cache_free(from_, object);
        }

    private:
        uslab_cache *from_ = nullptr;
    };

    /* Owns an object. It must not outlive the cache. */
    using unique_ptr = std::unique_ptr<T, deleter>;

    /* Creates the cache, as uslab_cache_create. Throws. */
    explicit cache(const char *name, const cache_options &wanted = {})
    {
        auto options = detail::sized<uslab_cache_options>();
        options.align = wanted.align > alignof(T) ? wanted.align : alignof(T);
        options.flags = wanted.flags;
        options.min_objects = wanted.min_objects;
        options.min_order = wanted.min_order;
        options.max_order = wanted.max_order;
        options.sheaf_capacity = wanted.sheaf_capacity;
        options.numa_policy = wanted.numa_policy;
        options.numa_node = wanted.numa_node;
        handle_ = uslab_cache_create(name, sizeof(T), &options);
        if (handle_ == nullptr) detail::fail("uslab_cache_create");
    }

    cache(cache &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

    cache &operator=(cache &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }

    ~cache() { (void)uslab_cache_destroy(handle_); }

    /* Constructs an object from `arguments`. Throws, also what the constructor throws. */
    template <typename... Arguments> [[nodiscard]] unique_ptr make_unique(Arguments &&...arguments)
    {
        T *place = allocate();
        if constexpr (std::is_nothrow_constructible_v<T, Arguments &&...>) {
            return unique_ptr(::new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)...), deleter(handle_));
        } else {
            try {
                return unique_ptr(::new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)...),
                                  deleter(handle_));
            } catch (...) {
                deallocate(place);
                throw;
            }
        }
    }

    /* Returns uninitialised memory for one T. Throws. */
    [[nodiscard]] T *allocate()
    {
        T *place = try_allocate();
        if (place == nullptr) detail::fail("uslab_cache_alloc");
        return place;
    }

    /* Returns uninitialised memory for one T, or nullptr. */
    [[nodiscard]] T *try_allocate() noexcept { return static_cast<T *>(uslab_cache_alloc(handle_, 0)); }

    /* Frees the memory of a T that is already destroyed. nullptr is allowed. */
    void deallocate(T *place) noexcept { uslab_cache_free(handle_, place); }

    /* Fills `places` (std::span, std::vector, std::array, an array) with pointers to uninitialised
     * memory for one T each. Returns true, or keeps none and returns false. */
    template <typename Places> [[nodiscard]] bool allocate_bulk(Places &&places) noexcept
    {
        return allocate_bulk(std::data(places), std::size(places));
    }
    [[nodiscard]] bool allocate_bulk(T **places, std::size_t n) noexcept
    {
        return uslab_cache_alloc_bulk(handle_, 0, n, reinterpret_cast<void **>(places));
    }

    /* Frees the memory of all places, as deallocate does. None may be nullptr. */
    template <typename Places> void deallocate_bulk(const Places &places) noexcept
    {
        deallocate_bulk(std::data(places), std::size(places));
    }
    void deallocate_bulk(T *const *places, std::size_t n) noexcept
    {
        uslab_cache_free_bulk(handle_, n, reinterpret_cast<void *const *>(places));
    }

    /* As uslab_cache_shrink: returns the bytes of memory that became free pages. */
    std::size_t shrink() noexcept { return uslab_cache_shrink(handle_); }

    /* The figures of the cache. Throws if there was no memory for its counters. Not for a hot
     * path. */
    [[nodiscard]] uslab_cache_stats stats() const
    {
        auto stats = detail::sized<uslab_cache_stats>();
        if (uslab_cache_get_stats(handle_, &stats) != 0) detail::fail("uslab_cache_get_stats");
        return stats;
    }

    /* The handle of uslab.h, still owned by this object. */
    [[nodiscard]] uslab_cache *get() const noexcept { return handle_; }

private:
    uslab_cache *handle_ = nullptr;
};

/*
 * A sheaf of a cache for one thread at a time (uslab_cache_local). It can be moved, not copied, and
 * must not outlive the cache. Its objects may also be freed through the cache, on any thread; and
 * objects that the cache allocated, through the sheaf.
 */
template <typename T> class local_cache {
public:
    /* Destroys an object and frees its memory through the sheaf. The pointer must end on the
     * sheaf's thread, before the sheaf does. */
    class deleter {
    public:
        deleter() noexcept = default;
        explicit deleter(uslab_sheaf *from) noexcept : from_(from) {}
        void operator()(T *object) const noexcept
        {
            object->~T();
            uslab_sheaf_free(from_, object);
        }

    private:
        uslab_sheaf *from_ = nullptr;
    };

    using unique_ptr = std::unique_ptr<T, deleter>;

    /* Throws. */
    explicit local_cache(cache<T> &from) : handle_(uslab_cache_local(from.get(), 0))
    {
        if (handle_ == nullptr) detail::fail("uslab_cache_local");
    }

    local_cache(local_cache &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

    local_cache &operator=(local_cache &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }

    ~local_cache() { uslab_sheaf_return(handle_); }

    /* Constructs an object from `arguments`. Throws, also what the constructor throws. */
    template <typename... Arguments> [[nodiscard]] unique_ptr make_unique(Arguments &&...arguments)
    {
        struct place {
            uslab_sheaf *from;
            T *memory;
            ~place()
            {
                if (memory != nullptr) uslab_sheaf_free(from, memory);
            }
        } unused{handle_, allocate()};
        ::new (static_cast<void *>(unused.memory)) T(std::forward<Arguments>(arguments)...);
        return unique_ptr(std::exchange(unused.memory, nullptr), deleter(handle_));
    }

    /* Returns uninitialised memory for one T. Throws. */
    [[nodiscard]] T *allocate()
    {
        T *memory = try_allocate();
        if (memory == nullptr) detail::fail("uslab_sheaf_alloc");
        return memory;
    }

    /* Returns uninitialised memory for one T, or nullptr. */
    [[nodiscard]] T *try_allocate() noexcept { return static_cast<T *>(uslab_sheaf_alloc(handle_, 0)); }

    /* Frees the memory of a T that is already destroyed. nullptr is allowed. */
    void deallocate(T *memory) noexcept { uslab_sheaf_free(handle_, memory); }

    /* The number of free objects in the sheaf. */
    [[nodiscard]] std::size_t held() const noexcept { return uslab_sheaf_count(handle_); }

    /* The handle of uslab.h, still owned by this object. */
    [[nodiscard]] uslab_sheaf *get() const noexcept { return handle_; }

private:
    uslab_sheaf *handle_ = nullptr;
};

/* std::pmr on uslab_malloc. All objects of this class are one resource: each may free the memory of
 * another. They compare equal, unless run-time type information is switched off. Throws. */
class memory_resource final : public std::pmr::memory_resource {
    void *do_allocate(std::size_t bytes, std::size_t align) override
    {
        void *memory = align <= small_align ? uslab_malloc(bytes) : uslab_aligned_alloc(align, bytes);
        if (memory == nullptr) throw std::bad_alloc();
        return memory;
    }

    void do_deallocate(void *memory, std::size_t bytes, std::size_t align) override
    {
        if (align <= small_align)
            uslab_free_sized(memory, bytes);
        else
            uslab_free_aligned_sized(memory, align, bytes);
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
#if defined(__cpp_rtti)
        if (dynamic_cast<const memory_resource *>(&other) != nullptr) return true;
#endif
        return this == &other;
    }

    static constexpr std::size_t small_align = 16;
};

/* std::pmr on a private heap. Memory may be freed piece by piece; the destructor frees the rest.
 * Throws. */
class heap_resource : public std::pmr::memory_resource {
public:
    heap_resource() : heap_(uslab_heap_create())
    {
        if (heap_ == nullptr) detail::fail("uslab_heap_create");
    }
    ~heap_resource() override { uslab_heap_destroy(heap_); }
    heap_resource(const heap_resource &) = delete;
    heap_resource &operator=(const heap_resource &) = delete;

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override
    {
        void *memory = uslab_heap_aligned_alloc(heap_, align, bytes);
        if (memory == nullptr) throw std::bad_alloc();
        return memory;
    }
    void do_deallocate(void *memory, std::size_t, std::size_t) override { uslab_heap_free(heap_, memory); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    uslab_heap *heap_;
};

namespace detail {

/* The cache for nodes of one size and alignment, made at the first use. It is never destroyed:
 * containers may outlive every static object. Each shared object built with hidden visibility
 * (-fvisibility=hidden) has its own node caches, as it may contain its own copy of the library. So
 * containers must not pass between two such shared objects. */
template <std::size_t Size, std::size_t Align> class nodes {
public:
    static void *allocate()
    {
        uslab_cache *from = cache_.load(std::memory_order_acquire);
        if (from != nullptr) {
            void *node = uslab_cache_alloc(from, 0);
            if (node != nullptr) return node;
        }
        /* Out of line, since allocate() is inlined into every loop of every container. */
        return allocate_slow();
    }

    /* The cache exists, since it allocated the node. */
    static void deallocate(void *node) noexcept { uslab_cache_free(cache_.load(std::memory_order_acquire), node); }

private:
    USLAB_ATTRIBUTE((noinline, cold)) static void *allocate_slow()
    {
        void *node = uslab_cache_alloc(make(), 0);
        if (node == nullptr) fail("uslab_cache_alloc");
        return node;
    }

    static uslab_cache *make()
    {
        uslab_cache *from = cache_.load(std::memory_order_acquire);
        if (from != nullptr) return from;
        char name[48];
        (void)std::snprintf(name, sizeof name, "node-%zu", Size);
        auto options = sized<uslab_cache_options>();
        options.align = Align;
        uslab_cache *made = uslab_cache_create(name, Size, &options);
        if (made == nullptr) fail("uslab_cache_create");
        if (cache_.compare_exchange_strong(from, made, std::memory_order_acq_rel)) return made;
        (void)uslab_cache_destroy(made);
        return from;
    }

    static inline std::atomic<uslab_cache *> cache_{nullptr};
};

} // namespace detail

/*
 * An allocator for the standard containers. Single objects, which node containers ask for, come
 * from the cache of their size and alignment; arrays come from uslab_malloc. All allocators are
 * equal: each may free the memory of another. allocate() throws.
 */
template <typename T> class allocator {
public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;

    constexpr allocator() noexcept = default;
    template <typename U> constexpr allocator(const allocator<U> &) noexcept {}

    [[nodiscard]] T *allocate(std::size_t n)
    {
        if constexpr (as_node()) {
            if (n == 1) return static_cast<T *>(detail::nodes<sizeof(T), alignof(T)>::allocate());
        }
        if (n > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
        void *memory = nullptr;
        if constexpr (plain())
            memory = uslab_malloc(n * sizeof(T));
        else
            memory = uslab_aligned_alloc(alignof(T), n * sizeof(T));
        if (memory == nullptr) throw std::bad_alloc();
        return static_cast<T *>(memory);
    }

#if defined(__cpp_lib_allocate_at_least)
    /* Returns memory for n objects or more: all that the size class has. Throws. */
    [[nodiscard]] std::allocation_result<T *> allocate_at_least(std::size_t n)
    {
        T *memory = detail::any_size(allocate(n));
        if (as_node() && n == 1) return {memory, 1};
        return {memory, n == 0 ? 0 : uslab_usable_size(memory) / sizeof(T)};
    }
#endif

    void deallocate(T *memory, std::size_t n) noexcept
    {
        if constexpr (as_node()) {
            if (n == 1) return detail::nodes<sizeof(T), alignof(T)>::deallocate(memory);
        }
        if constexpr (plain())
            uslab_free_sized(memory, n * sizeof(T));
        else
            uslab_free_aligned_sized(memory, alignof(T), n * sizeof(T));
    }

    template <typename U> friend constexpr bool operator==(const allocator &, const allocator<U> &) noexcept { return true; }
    template <typename U> friend constexpr bool operator!=(const allocator &, const allocator<U> &) noexcept { return false; }

private:
    /* Whether a single object comes from a cache. A cache for each type beyond a page would hold
     * much memory. This is a function since T may be incomplete until its first use. */
    static constexpr bool as_node() noexcept { return sizeof(T) <= 4096 && alignof(T) <= 4096; }

    /* Whether the alignment of uslab_malloc is enough. */
    static constexpr bool plain() noexcept { return alignof(T) <= 16; }
};

/*
 * A private heap. The destructor frees all its memory; containers in it need not be destroyed
 * before that if their elements need no destructor. It can be moved, not copied.
 */
class heap {
public:
    /* Throws. */
    explicit heap(const char *name = "heap") : handle_(uslab_heap_create_named(name))
    {
        if (handle_ == nullptr) detail::fail("uslab_heap_create_named");
    }
    heap(heap &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    heap &operator=(heap &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~heap() { uslab_heap_destroy(handle_); }

    /* The figures of the heap. Throws. Not for a hot path. */
    [[nodiscard]] uslab_heap_stats stats() const
    {
        auto stats = detail::sized<uslab_heap_stats>();
        if (uslab_heap_get_stats(handle_, &stats) != 0) detail::fail("uslab_heap_get_stats");
        return stats;
    }

    /* The handle of uslab.h, still owned by this object. */
    [[nodiscard]] uslab_heap *get() const noexcept { return handle_; }

private:
    uslab_heap *handle_ = nullptr;
};

/*
 * An allocator for the standard containers, bound to a heap, which must outlive it. Allocators of
 * one heap are equal. A container keeps its heap in a copy assignment, and takes the other
 * container's heap in a move assignment or a swap. allocate() throws.
 */
template <typename T> class heap_allocator {
public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    heap_allocator(const heap &from) noexcept : heap_(from.get()) {}
    explicit heap_allocator(uslab_heap *from) noexcept : heap_(from) {}
    template <typename U> heap_allocator(const heap_allocator<U> &other) noexcept : heap_(other.get()) {}

    [[nodiscard]] T *allocate(std::size_t n)
    {
        if (n > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
        void *memory = uslab_heap_aligned_alloc(heap_, alignof(T), n * sizeof(T));
        if (memory == nullptr) throw std::bad_alloc();
        return static_cast<T *>(memory);
    }

#if defined(__cpp_lib_allocate_at_least)
    /* Returns memory for n objects or more: all that the size class has. Throws. */
    [[nodiscard]] std::allocation_result<T *> allocate_at_least(std::size_t n)
    {
        T *memory = allocate(n);
        return {memory, uslab_usable_size(memory) / sizeof(T)};
    }
#endif

    void deallocate(T *memory, std::size_t) noexcept { uslab_heap_free(heap_, memory); }

    /* The heap. */
    [[nodiscard]] uslab_heap *get() const noexcept { return heap_; }

    template <typename U> friend bool operator==(const heap_allocator &one, const heap_allocator<U> &other) noexcept
    {
        return one.get() == other.get();
    }
    template <typename U> friend bool operator!=(const heap_allocator &one, const heap_allocator<U> &other) noexcept
    {
        return one.get() != other.get();
    }

private:
    uslab_heap *heap_;
};

/* Returned by `scan`: it can free nothing now; the share stays owed. */
inline constexpr std::size_t shrink_stop = static_cast<std::size_t>(-1); // USLAB_SHRINK_STOP

/*
 * A shrinker of two callables. `count()` returns how many entries could go. `scan(n)` frees up to n
 * entries and returns how many it freed, or shrink_stop. Either may take a
 * `const uslab_shrink_control &` instead. A `scan` that could take either argument gets n.
 *
 * The callables run on any thread that reclaims, one call at a time. An exception from them ends
 * the program. The destructor waits for a running callback; a callback must not run it.
 */
class shrinker {
public:
    /* Registers, as uslab_shrinker_register; 0 is the default of `seeks` and `batch`. Throws. */
    template <typename Count, typename Scan>
    shrinker(const char *name, Count count, Scan scan, unsigned seeks = 0, unsigned batch = 0)
    {
        using state = pair<Count, Scan>;
        auto owned = std::make_unique<state>(std::move(count), std::move(scan));
        auto options = detail::sized<uslab_shrinker_options>();
        options.count = [](void *context, const uslab_shrink_control *control) noexcept -> std::size_t {
            auto &count_entries = static_cast<state *>(context)->count;
            if constexpr (std::is_invocable_v<Count &>)
                return count_entries();
            else
                return count_entries(*control);
        };
        options.scan = [](void *context, const uslab_shrink_control *control) noexcept -> std::size_t {
            auto &free_entries = static_cast<state *>(context)->scan;
            if constexpr (std::is_invocable_v<Scan &, std::size_t>)
                return free_entries(control->nr_to_scan);
            else
                return free_entries(*control);
        };
        options.context = owned.get();
        options.seeks = seeks;
        options.batch = batch;
        handle_ = uslab_shrinker_register(name, &options);
        if (handle_ == nullptr) detail::fail("uslab_shrinker_register");
        state_ = std::move(owned);
    }

    shrinker(shrinker &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), state_(std::move(other.state_)) {}

    shrinker &operator=(shrinker &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(state_, other.state_);
        return *this;
    }

    ~shrinker() { uslab_shrinker_unregister(handle_); }

    /* Sets the average cost to make an entry again, in nanoseconds, in place of `seeks`. */
    void set_miss_cost_ns(std::uint64_t cost_ns) noexcept { (void)uslab_shrinker_set_miss_cost_ns(handle_, cost_ns); }

private:
    struct base {
        virtual ~base() = default;
    };
    template <typename Count, typename Scan> struct pair final : base {
        pair(Count c, Scan s) : count(std::move(c)), scan(std::move(s)) {}
        Count count;
        Scan scan;
    };

    uslab_shrinker *handle_ = nullptr;
    std::unique_ptr<base> state_;
};

} // namespace uslab

#endif
