/*
 * uslab from C++17: caches that make objects, memory resources for std::pmr, an allocator for the standard containers, shrinkers from lambdas.
 *
 *   uslab::cache<T>         objects of one type; make_unique; bulk
 *   uslab::memory_resource  std::pmr on uslab_malloc
 *   uslab::heap_resource    std::pmr on a heap of its own, all freed with it
 *   uslab::allocator<T>     for std::list, std::map, std::unordered_map, ...: nodes come from a cache of their size, arrays from uslab_malloc
 *   uslab::shrinker         two callables, registered for as long as the object lives
 *
 * Where there is no memory the usual exceptions are thrown: std::bad_alloc, and std::system_error with the error number where something else was
 * wrong. uslab.h says what holds for threads, forks and signals.
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

/* Throws what errno says. */
[[noreturn]] inline void fail(const char *what)
{
    if (errno == ENOMEM) throw std::bad_alloc();
    throw std::system_error(errno, std::generic_category(), what);
}

/* Options as C has them, zeroes but for the size. */
template <typename Options> Options sized() noexcept
{
    Options options{};
    options.type_size = sizeof(Options);
    return options;
}

} // namespace detail

/* What a cache may be made with; the names are those of uslab_cache_options. */
struct cache_options {
    std::size_t align = 0;
    unsigned flags = 0;
    unsigned min_objects = 0, min_order = 0, max_order = 0, sheaf_capacity = 0;
};

/*
 * A cache of Ts. Movable; what it gave out must have come back when it ends, otherwise uslab reports it and the cache stays in the process.
 */
template <typename T> class cache {
public:
    /* Destroys an object and gives it back. */
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

    /* Owns an object; must not outlive the cache. */
    using unique_ptr = std::unique_ptr<T, deleter>;

    explicit cache(const char *name, const cache_options &wanted = {})
    {
        auto options = detail::sized<uslab_cache_options>();
        options.align = wanted.align > alignof(T) ? wanted.align : alignof(T);
        options.flags = wanted.flags;
        options.min_objects = wanted.min_objects;
        options.min_order = wanted.min_order;
        options.max_order = wanted.max_order;
        options.sheaf_capacity = wanted.sheaf_capacity;
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

    /* An object that is made of `arguments`. */
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

    /* Memory for a T, in which none lives yet. */
    [[nodiscard]] T *allocate()
    {
        T *place = try_allocate();
        if (place == nullptr) detail::fail("uslab_cache_alloc");
        return place;
    }

    /* The same, or nullptr. */
    [[nodiscard]] T *try_allocate() noexcept { return static_cast<T *>(uslab_cache_alloc(handle_, 0)); }

    /* Takes memory back in which no T lives any more. nullptr is allowed. */
    void deallocate(T *place) noexcept { uslab_cache_free(handle_, place); }

    /* Memory for as many Ts as there are places in `places` (std::span, std::vector, std::array, an array), or none and false. */
    template <typename Places> [[nodiscard]] bool allocate_bulk(Places &&places) noexcept
    {
        return allocate_bulk(std::data(places), std::size(places));
    }
    [[nodiscard]] bool allocate_bulk(T **places, std::size_t n) noexcept
    {
        return uslab_cache_alloc_bulk(handle_, 0, n, reinterpret_cast<void **>(places));
    }

    /* Takes all of them back. */
    template <typename Places> void deallocate_bulk(const Places &places) noexcept
    {
        deallocate_bulk(std::data(places), std::size(places));
    }
    void deallocate_bulk(T *const *places, std::size_t n) noexcept
    {
        uslab_cache_free_bulk(handle_, n, reinterpret_cast<void *const *>(places));
    }

    /* Bytes that went to the page layer. */
    std::size_t shrink() noexcept { return uslab_cache_shrink(handle_); }

    [[nodiscard]] uslab_cache_stats stats() const
    {
        auto stats = detail::sized<uslab_cache_stats>();
        if (uslab_cache_get_stats(handle_, &stats) != 0) detail::fail("uslab_cache_get_stats");
        return stats;
    }

    /* The cache as C has it, still owned by this object. */
    [[nodiscard]] uslab_cache *get() const noexcept { return handle_; }

private:
    uslab_cache *handle_ = nullptr;
};

/* std::pmr on uslab_malloc. All of them are one resource: what one gave out another takes back (and compare so, unless run-time type
 * information is switched off). */
class memory_resource : public std::pmr::memory_resource {
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

/* std::pmr on a heap of its own: memory may be given back one by one, and all of it goes with the resource. */
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

/* The cache for nodes of one size and alignment, made at the first use. It stays for ever: containers may outlive every static object. */
template <std::size_t Size, std::size_t Align> class nodes {
public:
    static void *allocate()
    {
        uslab_cache *from = cache_.load(std::memory_order_acquire);
        if (from != nullptr) {
            void *node = uslab_cache_alloc(from, 0);
            if (node != nullptr) return node;
        }
        /* Out of line: it would be in every loop of every container. */
        return allocate_slow();
    }

    /* A node of it was allocated, so the cache is there. */
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
 * For the standard containers. Single objects, which are what node containers ask for, come from the cache of their size and
 * alignment; arrays from uslab_malloc. All of them are one: any takes back what another gave out.
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
    /* Past a page an object is no node, and a cache for each such type would hold much memory. A function, since T may be incomplete until
     * it is used. */
    static constexpr bool as_node() noexcept { return sizeof(T) <= 4096 && alignof(T) <= 4096; }

    /* uslab_malloc aligns as far. */
    static constexpr bool plain() noexcept { return alignof(T) <= 16; }
};

/* From scan: nothing can be done now. */
inline constexpr std::size_t shrink_stop = USLAB_SHRINK_STOP;

/*
 * A shrinker of two callables: `count` says how many entries could go, `scan(n)` frees up to n and says how many, or shrink_stop. Either may take a
 * `const uslab_shrink_control &` instead. An exception from them ends the program. Its end waits for a running callback; it must not end
 * within one of them.
 */
class shrinker {
public:
    template <typename Count, typename Scan>
    shrinker(const char *name, Count count, Scan scan, unsigned seeks = 0, unsigned batch = 0)
    {
        using state = pair<Count, Scan>;
        auto owned = std::make_unique<state>(std::move(count), std::move(scan));
        auto options = detail::sized<uslab_shrinker_options>();
        options.count = [](void *context, const uslab_shrink_control *control) noexcept -> std::size_t {
            auto &count_entries = static_cast<state *>(context)->count;
            if constexpr (std::is_invocable_v<Count &, const uslab_shrink_control &>)
                return count_entries(*control);
            else
                return count_entries();
        };
        options.scan = [](void *context, const uslab_shrink_control *control) noexcept -> std::size_t {
            auto &free_entries = static_cast<state *>(context)->scan;
            if constexpr (std::is_invocable_v<Scan &, const uslab_shrink_control &>)
                return free_entries(*control);
            else
                return free_entries(control->nr_to_scan);
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

    /* What it costs on average to make an entry again. */
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
